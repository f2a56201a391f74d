"""A pinned run stays with its artifacts, whatever their age; the audit log has who pinned it and why."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from orchestrator.artifacts.tasks import count_due_objects
from orchestrator.core.cause import Cause
from orchestrator.maintenance.pruning import delete_everything
from orchestrator.services import job_end
from orchestrator.workflows import pins
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import Job, OperatorEvent, StoredArtifact, WorkflowRun
from runtime_jobs.states import FailureReason
from tests.factories import OPERATOR
from tests.live_server import eventually
from tests.orchestrator.protocols.git_http.world import RunningJob, running_job
from tests.orchestrator.repositories.world import added

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(settings, tmp_path) -> RunningJob:
    """A run in execution, with one artifact."""
    settings.STORAGES = settings.STORAGES | {
        "artifacts": settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path)}}
    }
    running = running_job(added("https://github.com/acme/web"))
    project, now = running.repository.project, database_now()
    StoredArtifact.objects.create(
        job=running.job, batch=running.run.batch, name="report", organization=project.organization, project=project,
        object_key="actions/runs/1/artifacts/report", byte_count=0, created_at=now, upload_until=now, completed_at=now,
        expires_at=now + timedelta(days=90),
    )  # fmt: skip
    return running


@pytest.fixture
def run(running) -> WorkflowRun:
    """A run that has ended."""
    end(running)
    return running.run


def end(running: RunningJob) -> None:
    job_end.fail(lease_ulid=running.lease.lease_ulid, worker=running.worker, reason=FailureReason.WORKER_ERROR)


def pin(run: WorkflowRun, *, pinned: bool = True) -> WorkflowRun:
    return pins.pin_workflow_run(run_id=run.pk, pinned=pinned, cause=Cause(OPERATOR, "release 1.0"))


def test_a_pinned_run_and_its_artifacts_are_kept_and_deleted_after_it_is_unpinned(run):
    later = database_now() + timedelta(days=4000)
    assert pin(run).pinned
    assert StoredArtifact.objects.get().expires_at is None
    assert count_due_objects(later) == 0
    assert delete_everything(now=later)["workflow_runs"] == 0
    assert StoredArtifact.objects.exists()
    assert not pin(run, pinned=False).pinned
    artifact = StoredArtifact.objects.get()
    assert artifact.expires_at == artifact.created_at + timedelta(days=90)
    deleted = delete_everything(now=later)
    assert (deleted["workflow_runs"], deleted["stored objects"]) == (1, 1)
    assert not StoredArtifact.objects.exists()


def test_a_repetition_is_no_event_and_the_audit_log_has_the_reason(run):
    for pinned in (True, True, False, False):
        pin(run, pinned=pinned)
    events = OperatorEvent.objects.filter(action__startswith="workflow_run.").order_by("id")
    assert [(event.action, event.target, event.reason) for event in events] == [
        ("workflow_run.pinned", "acme/web#1", "release 1.0"),
        ("workflow_run.unpinned", "acme/web#1", "release 1.0"),
    ]


def test_an_open_run_cannot_be_pinned_because_artifacts_may_follow(running):
    with pytest.raises(ResourceConflict, match="has not ended"):
        pin(running.run)
    end(running)
    assert pin(running.run).pinned


def test_without_a_period_artifacts_of_an_unpinned_run_never_expire(run, settings):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"artifacts": 0}
    pin(run)
    pin(run, pinned=False)
    assert StoredArtifact.objects.get().expires_at is None


def test_a_run_that_does_not_exist_is_not_found():
    with pytest.raises(NotFound):
        pins.pin_workflow_run(run_id=1, pinned=True, cause=Cause(OPERATOR))


@pytest.mark.django_db(transaction=True)
def test_a_run_that_retention_is_deleting_cannot_be_pinned(run):
    """The pin waits for the deletion, and then finds no run: else it would report a pinned run that is gone."""
    found = []

    def pin_meanwhile() -> None:
        try:
            found.append(pin(run))
        except NotFound as error:
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=pin_meanwhile)
    with transaction.atomic():  # as retention does: it locks the jobs, reads `pinned`, and deletes
        assert list(Job.objects.select_for_update().filter(batch=run.batch))
        thread.start()
        eventually(is_a_session_blocked)
        WorkflowRun.objects.filter(pk=run.pk, pinned=False).delete()
    thread.join(60)
    assert [type(outcome) for outcome in found] == [NotFound]


def is_a_session_blocked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction does not see a session that began later
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
        )
        return cursor.fetchone()[0]
