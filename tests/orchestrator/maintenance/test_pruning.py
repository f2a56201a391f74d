"""Retention deletes old units as a whole, and nothing that younger rows need. The audit is empty after each test."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.errors import QueryCanceled

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.checks import retention as retention_check
from orchestrator.core.metrics_models import Count
from orchestrator.incidents.models import Incident
from orchestrator.ingest.models import Run
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.maintenance import pruners, pruning
from orchestrator.maintenance.pruning import PruningTask, count_old_rows
from orchestrator.processes import scheduler as scheduler_module
from orchestrator.processes.scheduler import Scheduler
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.services import batches, claiming, job_end, retries
from orchestrator.services.batches import BatchJob, BatchSubmission
from orchestrator.services.job_end import ArtifactRef
from orchestrator.services.pruning import delete_finished_jobs
from orchestrator.step_logs import job_log_writes
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.models import (
    Artifact,
    Batch,
    Dependency,
    IdempotencyKey,
    Job,
    JobEvent,
    LogChunk,
    OperatorEvent,
    UnsentRun,
)
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    TIMINGS,
    ProjectFactory,
    WorkerFactory,
    claimed,
    offer,
    steps_spec,
    submitted,
)
from tests.orchestrator.limits.windows import expired_window

pytestmark = pytest.mark.django_db
OLD = timedelta(days=400)


def ended(job: Job, at: datetime, *, reason: FailureReason = FailureReason.WORKER_ERROR, **more: object) -> Job:
    """Run the waiting job, the only one, until it fails at this time."""
    claim = claimed(now=at, job_types=("runtime", "steps"))
    assert claim.job.job_ulid == job.job_ulid
    end = {"lease_ulid": claim.lease.lease_ulid, "worker": claim.lease.worker, "now": at + timedelta(seconds=2)}
    job_log_writes.append_log(**(end | {"now": at + timedelta(seconds=1)}), seq=0, chunk=b"x" * 100)
    job_end.fail(**end, reason=reason, artifacts=(ArtifactRef("log", f"https://example/{job.pk}"),), **more)
    return Job.objects.get(pk=job.pk)


@pytest.fixture
def project(db):
    return ProjectFactory()


@pytest.fixture
def long_ago(db) -> datetime:
    return database_now() - OLD


def kept() -> set[str]:
    return set(Job.objects.values_list("job_ulid", flat=True))


def prune() -> Counter[str]:
    """Delete what is old; it must be what the estimate says."""
    estimate = Counter({table: rows for table, rows in count_old_rows().items() if rows})
    deleted = +PruningTask().delete_all()
    assert estimate == deleted
    return deleted


def test_an_old_job_is_deleted_with_all_that_belongs_to_it(project, long_ago):
    ended(submitted(project, now=long_ago), long_ago)
    young = ended(submitted(project), database_now())
    deleted = prune()
    assert kept() == {young.job_ulid}
    assert deleted == {
        "runtime_jobs": 1, "runtime_job_events": 4, "runtime_worker_leases": 1, "runtime_job_log_chunks": 1,
        "runtime_job_artifacts": 1, "step_logs": 1,
    }  # fmt: skip
    for model in (JobEvent, Lease, LogChunk, Artifact):
        assert set(model.objects.values_list("job_id", flat=True)) == {young.job_ulid}


@pytest.mark.parametrize(("days", "remains"), [(364.9, True), (365.1, False)])
def test_the_age_is_counted_from_the_end_of_the_job(project, long_ago, days, remains):
    at = database_now() - timedelta(days=days)
    job = submitted(project, now=long_ago)
    ended(job, at)
    prune()
    assert (kept() == {job.job_ulid}) == remains


def test_jobs_that_have_not_ended_stay_whatever_their_age(project, long_ago):
    jobs = [submitted(project, now=long_ago) for _ in range(2)]
    claimed()
    assert +prune() == {}
    assert kept() == {job.job_ulid for job in jobs}


def test_all_attempts_of_a_job_are_deleted_together_or_not_at_all(project, long_ago):
    first = ended(submitted(project, now=long_ago), long_ago)
    second = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    assert +prune() == {"runtime_job_log_chunks": 1, "step_logs": 1}, "its log has a period of its own"
    ended(second, database_now())
    prune()
    assert kept() == {first.job_ulid, second.job_ulid}
    later = database_now() + OLD
    PruningTask().delete_all(now=later)
    assert kept() == set()


def test_a_run_that_waits_for_its_upload_keeps_its_job(project, long_ago):
    failed = ended(
        submitted(project, now=long_ago), long_ago, reason=FailureReason.UPLOAD_FAILED, unsent_run={"run": "x"}
    )
    prune()
    assert kept() == {failed.job_ulid}
    again = retries.reupload(job_ulid=failed.job_ulid, actor=OPERATOR, reason="up again", now=long_ago).job
    claim = claimed(WorkerFactory(capabilities=["linux", "resend"]), now=long_ago)
    job_end.complete(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, ingest_run_id="run_1", now=long_ago)
    assert UnsentRun.objects.count() == 2
    assert Job.objects.get(pk=again.pk).ingest_run_id == "run_1"
    prune()
    assert kept() == set()


def test_what_a_younger_job_depends_on_stays_and_an_old_line_goes_as_a_whole(project, long_ago):
    old = ended(submitted(project, now=long_ago), long_ago)
    young = submitted(project, depends_on=(old,))
    assert Job.objects.get(pk=young.pk).state == "canceled", "what it depends on has failed"
    line = [ended(submitted(project, now=long_ago), long_ago)]
    for _ in range(4):
        line.append(submitted(project, depends_on=(line[-1],), now=long_ago))
    assert {job.state for job in Job.objects.filter(pk__in=[job.pk for job in line])} <= {"canceled", "failed"}
    prune()
    assert kept() == {old.job_ulid, young.job_ulid}
    assert Dependency.objects.count() == 1


def batch_of(project, number: int, at: datetime) -> Batch:
    origin = BatchSubmission(
        org_slug=project.organization.slug, project_slug=project.slug, trigger_kind="manual", trigger_actor="alice",
        correlation_id="test", source_address=None, source=None, details={},
    )  # fmt: skip
    jobs = [BatchJob(steps_spec(name=f"job-{place}")) for place in range(number)]
    policy = JOB_TYPES["steps"].policy(**TIMINGS)
    outcome = batches.submit_batch(
        origin, jobs, policy_for=lambda _: policy, default_pool="shared-linux", actor=ALICE, now=at
    )
    return outcome.batch


def test_a_batch_is_deleted_with_all_of_its_jobs_or_not_at_all(project, long_ago):
    batch = batch_of(project, 3, long_ago)
    jobs = list(Job.objects.filter(batch=batch).order_by("id"))
    for job in jobs[:2]:
        ended(job, long_ago)
    prune()
    assert kept() == {job.job_ulid for job in jobs}
    ended(jobs[2], long_ago + timedelta(days=1))
    assert prune()["runtime_batches"] == 1
    assert kept() == set()


def test_logs_runs_and_records_have_periods_of_their_own(project, settings):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"logs": 5, "runs": 7}
    now = database_now()
    job = ended(submitted(project, now=now - timedelta(days=6)), now - timedelta(days=6))
    Run.objects.create(
        run_id="run_1", job_id="rtj_1", org_slug="a", project_slug="b", worker_id="w", payload={}, payload_sha256="",
        received_at=now - timedelta(days=8),
    )  # fmt: skip
    for days in (1, 3):
        IdempotencyKey.objects.create(
            principal="p", operation="o", key=str(days), fingerprint="f", result_id="r",
            created_at=now - timedelta(days=days),
        )  # fmt: skip
        Session.objects.create(session_key=str(days), session_data="", expire_date=now + timedelta(days=2 - days))
    for days in (None, 400):
        resolved = days and now - timedelta(days=days)
        Incident.objects.create(
            kind="breaker", org_slug="a", job_type="b", summary="s", opened_at=now - OLD, resolved_at=resolved
        )
    deleted = prune()
    assert deleted == {
        "runtime_job_log_chunks": 1, "step_logs": 1, "ingest_runs": 1, "idempotency_keys": 1, "django_session": 1,
        "incidents": 1,
    }  # fmt: skip
    assert kept() == {job.job_ulid}
    assert Incident.objects.get(kind="breaker").resolved_at is None


def operator_event(at: datetime) -> OperatorEvent:
    return OperatorEvent.objects.create(action="token.revoked", actor="olga", target="token ci", created_at=at)


def test_the_audit_log_of_operators_is_kept_until_a_setting_allows_its_deletion(long_ago, settings):
    old, young = operator_event(long_ago), operator_event(database_now())
    assert prune()["operator_events"] == 0
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"operator_events": 30}
    assert prune()["operator_events"] == 1
    assert list(OperatorEvent.objects.values_list("pk", flat=True)) == [young.pk]
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        OperatorEvent.objects.all().delete()
    assert old.pk < young.pk


def test_the_audit_log_is_deleted_in_batches(long_ago, settings, monkeypatch):
    monkeypatch.setattr(pruners, "ROWS", 2)
    monkeypatch.setattr(pruners, "SLOW_SECONDS", float("inf"))  # a slow step is followed by a smaller one
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"operator_events": 30}
    for _ in range(5):
        operator_event(long_ago)
    steps: list[int] = []
    PruningTask().delete_some(seconds=60, report=lambda table, rows: table == "operator_events" and steps.append(rows))
    assert steps == [2, 2, 1]


def test_old_rows_of_a_table_are_deleted_in_batches(long_ago, monkeypatch):
    """One unbounded DELETE of months exceeded the time of a statement in each round, and ended the round each time."""
    monkeypatch.setattr(pruners, "ROWS", 2)
    monkeypatch.setattr(pruners, "SLOW_SECONDS", float("inf"))  # a slow step is followed by a smaller one
    for key in "abcde":
        IdempotencyKey.objects.create(
            principal="p", operation="o", key=key, fingerprint="f", result_id="r", created_at=long_ago
        )
        WebhookDelivery.objects.create(event="push", outcome="ignored", received_at=long_ago)
    steps: dict[str, list[int]] = {"idempotency_keys": [], "webhook_deliveries": []}
    PruningTask().delete_some(seconds=60, report=lambda table, rows: table in steps and steps[table].append(rows))
    assert steps == {"idempotency_keys": [2, 2, 1], "webhook_deliveries": [2, 2, 1]}


def test_the_history_of_the_admin_is_deleted_after_its_period(long_ago, django_user_model):
    user = django_user_model.objects.create_user("olga")
    for at in (long_ago, database_now()):
        entry = LogEntry.objects.create(user=user, object_repr="ci", action_flag=2)
        LogEntry.objects.filter(pk=entry.pk).update(action_time=at)
    assert prune()["django_admin_log"] == 1
    assert LogEntry.objects.count() == 1


def test_throttle_windows_are_deleted_when_they_have_no_effect_any_more():
    now = database_now()
    for number, minutes in enumerate((-1, 10)):
        expired_window(number, now + timedelta(minutes=minutes)).save()
    assert prune()["throttle_windows"] == 1
    assert ThrottleWindow.objects.get().ends_at > now


@pytest.mark.django_db(transaction=True)
def test_an_expired_throttle_window_that_begins_anew_meanwhile_is_kept():
    expired = database_now() - timedelta(minutes=1)
    counts = ThrottleWindow.objects.bulk_create(expired_window(number, expired) for number in range(2))
    is_renewed, go_on = threading.Event(), threading.Event()

    def attempt() -> None:
        with transaction.atomic():
            renewed = ThrottleWindow.objects.filter(pk=counts[0].pk)
            renewed.update(current=1, expires_at=database_now() + timedelta(minutes=5))
            is_renewed.set()
            assert go_on.wait(60)

    thread = elsewhere(attempt)
    assert is_renewed.wait(60)
    try:
        assert PruningTask().delete_all()["throttle_windows"] == 1
    finally:
        go_on.set()
        thread.join(60)
    assert [count.current for count in ThrottleWindow.objects.all()] == [1]


def test_a_period_of_zero_keeps_everything(project, long_ago, settings):
    settings.RETENTION_DAYS = dict.fromkeys(settings.RETENTION_DAYS, 0)
    job = ended(submitted(project, now=long_ago), long_ago)
    assert +prune() == {}
    assert kept() == {job.job_ulid}
    assert LogChunk.objects.count() == 1


def test_the_command_counts_and_deletes(project, long_ago):
    ended(submitted(project, now=long_ago), long_ago)
    result = {}
    for name, arguments in (("dry", ["--dry-run"]), ("real", []), ("again", [])):
        out = StringIO()
        call_command("prune", *arguments, stdout=out)
        result[name] = out.getvalue()
        assert Job.objects.count() == (1 if name == "dry" else 0)
    lines = {line.split()[0]: line.split() for line in result["dry"].splitlines()}
    assert lines["runtime_jobs"] == ["runtime_jobs", "365", "days", "1"]
    assert lines["runtime_job_events"] == ["runtime_job_events", "365", "days", "4"]
    assert lines["runtime_job_log_chunks"] == ["runtime_job_log_chunks", "90", "days", "1"]
    assert result["dry"].endswith("9 rows would be deleted.\n")
    assert result["real"].endswith("9 rows deleted.\n")
    assert result["again"].endswith("0 rows deleted.\n")


@pytest.fixture
def without_limit_of_time(monkeypatch):
    """Let the retention of a round take as long as it needs."""
    monkeypatch.setattr(scheduler_module, "PruningTask", lambda: PruningTask(monotonic=lambda: 0.0))


@pytest.mark.usefixtures("without_limit_of_time")
def test_the_scheduler_deletes_and_counts_what_it_deletes(project, long_ago):
    ended(submitted(project, now=long_ago), long_ago)
    scheduler = Scheduler(period=1)
    assert scheduler.round()
    assert not Job.objects.exists()
    counts = dict(Count.objects.filter(name="retention_deleted").values_list("detail", "value"))
    assert counts["runtime_jobs"] == 1
    assert counts["runtime_job_events"] == 4


def test_the_guard_of_the_events_is_closed_again_after_a_deletion(project):
    gone, stays = submitted(project), submitted(project)
    with transaction.atomic():
        assert events.delete_events([gone.job_ulid]) == 1
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            JobEvent.objects.filter(job_id=stays.job_ulid).delete()
        transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_no_event_is_deleted():
    with pytest.raises(TransactionManagementError):
        events.delete_events(["rtj_x"])


def test_one_function_alone_opens_the_guard_of_the_events():
    """Besides the trigger itself, which compares the setting."""
    folders = ("runtime_jobs", "leases", "orchestrator", "workers", "config")
    files = [path for name in folders for path in Path(BASE_DIR, name).rglob("*.py")]
    naming = {str(path.relative_to(BASE_DIR)) for path in files if "orchestrator.maintenance'" in path.read_text()}
    assert naming == {"runtime_jobs/events.py", "runtime_jobs/migrations/0002_triggers_and_storage.py"}


def test_a_step_that_takes_too_long_is_tried_again_with_fewer_jobs(project, long_ago, monkeypatch):
    for _ in range(5):
        ended(submitted(project, now=long_ago), long_ago)
    original, sizes = delete_finished_jobs, []

    def limited(*, job_ids, **cutoffs):
        sizes.append(len(job_ids))
        if len(job_ids) > 2:
            raise OperationalError("statement timeout") from QueryCanceled()
        return original(job_ids=job_ids, **cutoffs)

    monkeypatch.setattr("orchestrator.services.pruning.delete_finished_jobs", limited)
    monkeypatch.setattr(pruners, "JOBS", 8)
    PruningTask().delete_all()
    assert not Job.objects.exists()
    assert sizes[:3] == [5, 4, 2]


def timed_out(*_: object, **__: object) -> None:
    raise OperationalError("statement timeout") from QueryCanceled()


def failing_table(monkeypatch: pytest.MonkeyPatch, error: Exception, table: str = "idempotency_keys") -> list[str]:
    """Let each deletion in a table fail, and return the list of its tries."""
    original, tries = pruners.TablePruner.delete, []

    def delete(self: pruners.TablePruner, before: datetime, limit: int) -> int:
        if self.table == table:
            tries.append(self.table)
            raise error
        return original(self, before, limit)

    monkeypatch.setattr(pruners.TablePruner, "delete", delete)
    return tries


def nothing(table: str, rows: int) -> None:
    """Report no deleted rows."""


def test_a_kind_of_rows_whose_deletion_fails_stops_no_other(project, long_ago, monkeypatch, caplog):
    ended(submitted(project, now=long_ago), long_ago)
    tries, clock = failing_table(monkeypatch, ZeroDivisionError()), [0.0]
    task = PruningTask(monotonic=lambda: clock[0])
    assert [type(error) for error in task.delete_some(report=nothing)] == [ZeroDivisionError]
    assert not Job.objects.exists()
    assert "TablePruner of idempotency_keys failed; it is tried again in 600 seconds" in caplog.text
    for seconds, number in ((599.0, 1), (600.0, 2)):
        clock[0] = seconds
        task.delete_some(report=nothing)
        assert len(tries) == number


def test_a_lost_connection_ends_the_retention_of_a_round(monkeypatch):
    failing_table(monkeypatch, InterfaceError("the connection is closed"))
    with pytest.raises(InterfaceError):
        PruningTask(monotonic=lambda: 0.0).delete_some(report=nothing)


def test_the_command_deletes_the_other_rows_and_fails(project, long_ago, monkeypatch):
    ended(submitted(project, now=long_ago), long_ago)
    failing_table(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        call_command("prune", stdout=StringIO())
    assert not Job.objects.exists()


@pytest.mark.usefixtures("without_limit_of_time")
def test_the_scheduler_counts_a_kind_of_rows_whose_deletion_fails(monkeypatch):
    failing_table(monkeypatch, ZeroDivisionError())
    assert Scheduler(period=1).round()
    assert Count.objects.get(name="scheduler_row_failures", detail="delete_old_rows").value == 1
    assert not Count.objects.filter(name="scheduler_task_failures").exists()


def test_rows_of_a_table_that_take_too_long_are_deleted_in_smaller_steps(monkeypatch):
    expired = database_now() - timedelta(minutes=1)
    for number in range(5):
        expired_window(number, expired).save()
    original, limits = pruners.TablePruner.delete, []

    def delete(self: pruners.TablePruner, before: datetime, limit: int) -> int:
        if self.table == "throttle_windows":
            limits.append(limit)
            if limit > 2:
                timed_out()
        return original(self, before, limit)

    monkeypatch.setattr(pruners.TablePruner, "delete", delete)
    monkeypatch.setattr(pruners, "ROWS", 8)
    assert PruningTask().delete_all()["throttle_windows"] == 5
    assert limits[:3] == [8, 4, 2]


def test_a_row_of_a_table_that_takes_too_long_alone_fails(monkeypatch):
    monkeypatch.setattr(pruners, "ROWS", 1)
    error = OperationalError("statement timeout")
    error.__cause__ = QueryCanceled()
    failing_table(monkeypatch, error)
    assert PruningTask(monotonic=lambda: 0.0).delete_some(report=nothing) == [error]


def test_each_step_is_announced_also_if_it_deletes_nothing(monkeypatch):
    """The scheduler writes its beat then: two statements that time out would take longer than a takeover."""
    steps = []
    monkeypatch.setattr(pruners.TablePruner, "delete", timed_out)
    task = PruningTask()
    tables = [
        pruner for pruner in task._pruners if getattr(pruner, "delete", None) and type(pruner).delete is timed_out
    ]
    task.delete_some(seconds=float("inf"), report=nothing, before_step=lambda: steps.append(1))
    halvings = pruners.ROWS.bit_length()  # until a step of one row has failed
    assert len(steps) >= len(tables) * halvings


def test_stored_objects_are_deleted_also_if_the_rows_of_a_table_cannot(monkeypatch):
    reached = []
    monkeypatch.setattr(pruning, "delete_due_objects", lambda _now: reached.append("objects") or 0)
    monkeypatch.setattr(pruning, "drop_expired_partitions", lambda _now: reached.append("tokens") or {})
    monkeypatch.setattr(pruners.TablePruner, "delete", timed_out)
    with pytest.raises(OperationalError):
        pruning.delete_everything()
    assert reached == ["objects", "tokens"]


def test_a_job_whose_deletion_takes_too_long_is_skipped_until_the_next_pass(project, long_ago, monkeypatch, caplog):
    jobs = [ended(submitted(project, now=long_ago), long_ago) for _ in range(5)]
    original, clock = delete_finished_jobs, [0.0]

    def limited(*, job_ids, **cutoffs):
        if jobs[1].pk in job_ids:
            timed_out()
        return original(job_ids=job_ids, **cutoffs)

    task = PruningTask(monotonic=lambda: clock[0])
    monkeypatch.setattr("orchestrator.services.pruning.delete_finished_jobs", limited)
    assert {type(error) for error in task.delete_some(report=nothing)} == {OperationalError}
    assert kept() == {jobs[1].job_ulid}
    assert f"JobPruner of jobs skips row {jobs[1].pk}, whose deletion failed" in caplog.text
    monkeypatch.setattr("orchestrator.services.pruning.delete_finished_jobs", original)
    clock[0] = 600.0
    task.delete_some(report=nothing)
    assert kept() == set()


def test_where_the_deletion_of_several_jobs_fails_the_pass_ends_and_continues_behind_them(
    project, long_ago, monkeypatch, caplog
):
    jobs = [ended(submitted(project, now=long_ago), long_ago) for _ in range(4)]
    original, clock = delete_finished_jobs, [0.0]
    task = PruningTask(monotonic=lambda: clock[0])
    monkeypatch.setattr(pruners, "MAX_SKIPPED", 2)
    monkeypatch.setattr("orchestrator.services.pruning.delete_finished_jobs", timed_out)
    assert [type(error) for error in task.delete_some(report=nothing)] == [OperationalError] * 2
    assert caplog.text.count("skips row") == 1
    clock[0], deleted = 600.0, []

    def recorded(*, job_ids, **cutoffs):
        deleted.extend(job_ids)
        return original(job_ids=job_ids, **cutoffs)

    monkeypatch.setattr("orchestrator.services.pruning.delete_finished_jobs", recorded)
    task.delete_some(report=nothing)
    assert deleted[0] == jobs[2].pk
    assert kept() == set()


@pytest.mark.parametrize(
    ("days", "codes"),
    [
        ({}, []),
        ({"logs": -1}, ["orchestrator.E004"]),
        ({"idempotency_keys": 400}, ["orchestrator.E005"]),
        ({"webhook_deliveries": 0}, ["orchestrator.E005"]),
        ({"jobs": 0, "webhook_deliveries": 0}, []),
    ],
)
def test_periods_that_make_no_sense_are_refused(settings, days, codes):
    settings.RETENTION_DAYS = settings.RETENTION_DAYS | days
    assert [message.id for message in retention_check()] == codes


class Traffic(threading.Thread):
    """Submits, claims and ends jobs until it is stopped; keeps whatever goes wrong."""

    def __init__(self, project) -> None:
        super().__init__(daemon=True)
        self.project, self.worker = project, WorkerFactory()
        self.over = threading.Event()
        self.done, self.trouble = 0, list[BaseException]()

    def run(self) -> None:
        try:
            while not self.over.is_set():
                submitted(self.project)
                # The other thread's claim may hold the lane, or have taken this job.
                claimed = claiming.claim(worker=self.worker, offer=offer(self.worker))
                if claimed is None:
                    continue
                job_end.fail(lease_ulid=claimed.lease.lease_ulid, worker=self.worker, reason=FailureReason.WORKER_ERROR)
                self.done += 1
        except BaseException as error:  # noqa: BLE001 the test's own thread looks at it
            self.trouble.append(error)
        finally:
            connections.close_all()


COPY_JOBS = """
INSERT INTO runtime_jobs ({columns}, job_ulid, root_job_ulid, created_at, started_at, phase_at, finished_at, updated_at)
SELECT {columns}, 'rtj_old' || n, 'rtj_old' || n, at, at, at, at, at
  FROM runtime_jobs, generate_series(1, %(jobs)s) n, LATERAL (SELECT %(at)s - n * interval '1 minute' AS at) times
 WHERE job_ulid = %(template)s"""
COPY_OTHERS = """
INSERT INTO {table} ({columns}, job_ulid, {unique})
SELECT {columns}, 'rtj_old' || n, 'old' || n || '/' || id
  FROM {table}, generate_series(1, %(jobs)s) n WHERE job_ulid = %(template)s"""


def a_years_worth(template: Job, jobs: int) -> None:
    """Copies of an ended job with its events, leases and log, all of them old."""
    changed = {"job_ulid", "root_job_ulid", "created_at", "started_at", "phase_at", "finished_at", "updated_at"}
    values = {"jobs": jobs, "template": template.job_ulid, "at": database_now() - OLD}

    def columns(model, *without: str) -> str:
        fields = (field for field in model._meta.concrete_fields if not field.generated)
        return ", ".join(field.column for field in fields if field.column not in {"id", "xid", *without})

    with connection.cursor() as cursor:
        cursor.execute(COPY_JOBS.format(columns=columns(Job, *changed)), values)
        for model, unique in ((JobEvent, "event_ulid"), (Lease, "lease_ulid"), (LogChunk, None)):
            own = columns(model, "job_ulid", unique or "sha256")
            sql = COPY_OTHERS.format(table=model._meta.db_table, columns=own, unique=unique or "sha256")
            cursor.execute(sql, values)


@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(300)
def test_a_years_worth_is_deleted_while_claims_go_on_undisturbed():
    project = ProjectFactory()
    template = ended(submitted(project), database_now())
    a_years_worth(template, 3000)
    Job.objects.filter(pk=template.pk)
    assert count_old_rows()["runtime_jobs"] == 3000
    deadlocks = deadlocks_so_far()
    traffic = [Traffic(project) for _ in range(2)]
    for one in traffic:
        one.start()
    deleted = PruningTask().delete_all()
    for one in traffic:
        one.over.set()
        one.join(60)
    assert [repr(error) for one in traffic for error in one.trouble] == []
    assert all(one.done > 0 for one in traffic)
    assert (deleted["runtime_jobs"], deleted["runtime_job_events"]) == (3000, 12000)
    assert deadlocks_so_far() == deadlocks
    # A thread that stops after a claim without a job leaves the job that it has submitted.
    assert Job.objects.exclude(state="queued").count() == 1 + sum(one.done for one in traffic)
    assert [str(finding) for finding in run_audit(chains=True)] == []


def deadlocks_so_far() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def elsewhere(operation: Callable[[], object]) -> threading.Thread:
    """Run it in another session."""

    def run() -> None:
        try:
            operation()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_has_locked_is_left_for_later_and_not_waited_for():
    project, at = ProjectFactory(), database_now() - OLD
    jobs = [ended(submitted(project, now=at), at) for _ in range(2)]
    has_locked, go_on = threading.Event(), threading.Event()

    def retry() -> None:
        with transaction.atomic():
            Job.objects.locked().get(pk=jobs[0].pk)
            has_locked.set()
            assert go_on.wait(60)

    thread = elsewhere(retry)
    assert has_locked.wait(60)
    try:
        PruningTask().delete_all()
        assert kept() == {jobs[0].job_ulid}
    finally:
        go_on.set()
        thread.join(60)
    PruningTask().delete_all()
    assert kept() == set()
