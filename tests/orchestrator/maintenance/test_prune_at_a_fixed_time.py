"""`manage.py prune` at a fixed time: what is due goes with its objects, what is pinned stays, and the audit is empty."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from orchestrator.artifacts.storage import artifact_storage
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.models import UsedToken
from orchestrator.maintenance import pruning
from orchestrator.processes.housekeeping import HousekeepingProcess
from orchestrator.step_logs import tasks as log_tasks
from orchestrator.workflows import pins
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobStep, StepLog, StoredArtifact, WorkflowRun
from tests.factories import OPERATOR
from tests.orchestrator.protocols.shithub.world import RegisteredRunner, StartedRun, register, start_run

pytestmark = pytest.mark.django_db
CONTENT = b"coverage: 97 %\n"


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    """The folder of artifacts and logs."""
    settings.STORAGES = settings.STORAGES | {
        "artifacts": settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path / "artifacts")}}
    }
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    return tmp_path / "artifacts"


@pytest.fixture
def at(monkeypatch) -> Callable[[datetime], None]:
    """Set the time that retention and the deletion of log objects take for the present."""

    def set_time(now: datetime) -> None:
        monkeypatch.setattr(pruning, "database_now", lambda: now)
        monkeypatch.setattr(log_tasks, "database_now", lambda: now)

    return set_time


def executed(run: StartedRun, runner: RegisteredRunner) -> WorkflowRun:
    """The run after its only job: a log, an artifact, a success. The runner has started a second chain of tokens."""
    claimed = runner.client.claim()
    assert claimed.run().status_code == 200
    again = claimed.runner.post(f"{claimed.path}/token")
    claimed.token = again.json()["token"] if again.status_code == 200 else claimed.token
    assert claimed.log(b"hello\n").status_code == 202
    uploaded: Any = claimed.call("artifacts/upload", {"name": "report", "size_bytes": len(CONTENT)})
    assert uploaded.status_code == 201
    put = Client().put(urlsplit(uploaded.json()["upload_url"]).path, CONTENT, content_type="text/plain")
    assert put.status_code == 200
    for step in range(len(claimed.steps)):
        assert claimed.end_step(step).status_code == 200
    assert claimed.end().status_code == 200
    return run.run


def objects_of(run: WorkflowRun) -> list[str]:
    """The keys of a run's artifact and log objects."""
    logs = StepLog.objects.filter(job__batch=run.batch).exclude(object_key="").values_list("object_key", flat=True)
    artifacts = StoredArtifact.objects.filter(batch=run.batch).values_list("object_key", flat=True)
    return [*logs, *artifacts]


def audit(capsys) -> str:
    capsys.readouterr()
    call_command("audit", "--chains", "--objects")
    return capsys.readouterr().out


def test_what_is_due_is_deleted_with_its_objects_and_what_is_pinned_stays(at, capsys):
    runner = register()
    due, pinned = (executed(start_run(), runner) for _ in range(2))
    HousekeepingProcess(threads=1).run_due()  # logs become objects
    storage, of_due, of_pinned = artifact_storage(), objects_of(due), objects_of(pinned)
    assert (len(of_due), len(of_pinned)) == (2, 2)
    pins.pin_workflow_run(run_id=pinned.pk, pinned=True, cause=Cause(OPERATOR))
    tokens = UsedToken.objects.count()
    assert tokens > 10
    assert "invariants hold" in audit(capsys)

    at(database_now() + timedelta(days=89))
    call_command("prune")
    assert all(storage.size_of(key) is not None for key in of_due + of_pinned)
    assert WorkflowRun.objects.count() == 2
    assert UsedToken.objects.count() == 0  # their 30 days are over

    at(database_now() + timedelta(days=91))
    call_command("prune")
    assert not StoredArtifact.objects.filter(batch=due.batch).exists()
    assert WorkflowRun.objects.count() == 2

    fixed = database_now() + timedelta(days=366)
    at(fixed)
    call_command("prune", "--dry-run")
    assert WorkflowRun.objects.count() == 2
    call_command("prune")
    assert list(WorkflowRun.objects.all()) == [pinned]
    jobs = set(Job.objects.values_list("job_ulid", flat=True))
    assert len(jobs) == 1
    assert set(JobStep.objects.values_list("job_id", flat=True)) == jobs
    at(fixed + log_tasks.DISCARD_DELAY + timedelta(minutes=1))
    log_tasks.delete_discarded("")
    assert [storage.size_of(key) for key in of_due] == [None, None]
    assert sorted(storage.size_of(key) for key in of_pinned) == [len(b"hello\n"), len(CONTENT)]
    assert "invariants hold" in audit(capsys)
    call_command("prune")
    assert "\n0 rows deleted" in capsys.readouterr().out


def test_no_live_token_goes_with_the_old_ones(at):
    """The tokens of a session are live or kept for 30 days, while those of a year ago are dropped."""
    from orchestrator.job_tokens.partitions import create_partitions  # noqa: PLC0415 beside its only use

    now = database_now()
    year_ago = now - timedelta(days=365)
    create_partitions(year_ago.date(), 1)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO actions_used_tokens (expires_at, jti, runner_id, job_id, used_at)"
            " SELECT %s, lpad(n::text, 32, '0'), 1, 1, %s FROM generate_series(1, 1000) n",
            [year_ago, year_ago],
        )
    executed(start_run(), register())
    live = UsedToken.objects.filter(expires_at__gt=now - timedelta(days=30)).count()
    assert live > 5
    at(now)
    call_command("prune")
    assert UsedToken.objects.count() == live
