"""The audit finds tasks, mirrors and pinned runs that no operation leaves behind."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command

from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.core.cause import Cause
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.queue import claim_task, record_failure, record_success, release_claim, request_task
from orchestrator.repositories.operations import add_repository
from orchestrator.repositories.tasks import MIRROR
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Repository, StoredArtifact, WorkflowRun
from tests.factories import OPERATOR, ProjectFactory
from tests.orchestrator.protocols.git_http.world import running_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def repository():
    """A repository that is two hours old, with its task."""
    repository = add_repository(
        project=ProjectFactory(), full_name="acme/web", origin="https://github.com/acme/web", cause=Cause(OPERATOR)
    )
    Repository.objects.update(created_at=database_now() - timedelta(hours=2))
    return repository


def found() -> list[str]:
    return [finding.code for finding in run_audit()]


def test_the_life_of_a_task_breaks_no_invariant(repository):
    """At no time: requested, claimed, failed, failed for good, requested again, claimed and released, succeeded."""
    assert found() == []
    now = database_now()
    for number, end in enumerate(
        (
            lambda task: record_failure(task, "GitFailed: x"),
            lambda task: record_failure(task, "GitFailed: x", is_permanent=True),
            release_claim,
            record_success,
        )
    ):
        request_task(MIRROR, str(repository.pk))
        task = claim_task("test", now=now + timedelta(hours=number))
        assert task is not None
        assert found() == []
        end(task)
        assert found() == []


BROKEN = [
    ({"claimed_by": "host:1"}, "H2"),
    ({"claimed_until": "now"}, "H2"),
    ({"failures": 1, "failed_at": "now"}, "H3"),
    ({"last_error": "x"}, "H3"),
    ({"due_at": None}, "H3"),
    ({"failures": 1, "last_error": "x"}, "H3"),
    ({"subject": "0"}, "H4"),
]


@pytest.mark.parametrize(("columns", "code"), BROKEN)
def test_a_task_that_no_operation_writes_is_found(repository, columns, code):
    now = database_now()
    HousekeepingTask.objects.update(**{name: now if value == "now" else value for name, value in columns.items()})
    assert found() == [code]


@pytest.mark.parametrize(("hours", "codes"), [(5.9, []), (6.1, ["H1"])])
def test_a_task_that_is_passed_over_is_found_and_a_restored_dump_is_not(repository, hours, codes):
    """Compared are the times of tasks: in a dump all of them are old."""
    long_ago = database_now() - timedelta(days=30)
    HousekeepingTask.objects.update(due_at=long_ago)
    assert found() == []
    executed_at = long_ago + timedelta(hours=hours)
    HousekeepingTask.objects.create(kind="other", subject="", due_at=executed_at, succeeded_at=executed_at)
    assert found() == codes


def test_an_artifact_of_a_pinned_run_that_would_expire_is_found(repository):
    running, now = running_job(repository), database_now()
    project = repository.project
    StoredArtifact.objects.create(
        job=running.job, batch=running.run.batch, name="report", organization=project.organization, project=project,
        object_key="actions/runs/1/artifacts/report", byte_count=0, created_at=now, upload_until=now, completed_at=now,
        expires_at=now,
    )  # fmt: skip
    assert "H5" not in found()
    WorkflowRun.objects.update(pinned=True)
    assert "H5" in found()


@pytest.mark.parametrize(("hours", "codes"), [(0.9, []), (1.1, ["O6"])])
def test_a_mirror_without_a_repository_is_found_after_an_hour(repository, settings, tmp_path, hours, codes, capsys):
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    then = time.time() - hours * 3600
    for name in (str(repository.pk), "999999", "no-number"):
        folder = Path(settings.MIRROR_DIR, name)
        folder.mkdir(parents=True)
        os.utime(folder, (then, then))
    assert [finding.code for finding in audit_objects()] == codes
    if codes:
        with pytest.raises(SystemExit):
            call_command("audit", "--objects")
        assert "O6: The folder of a mirror belongs to a repository. Broken for 999999" in capsys.readouterr().out
