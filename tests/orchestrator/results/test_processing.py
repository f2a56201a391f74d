"""Contract 5: how a job ends whose result has arrived."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import DataError, OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected

from orchestrator.core import durable_files, unit_of_work
from orchestrator.results import models, processing
from orchestrator.results.outputs import encode_output, read_output
from orchestrator.results.processing import MAX_DURATION, process, read_again
from orchestrator.services import expiry, late_results, retries, transitions
from runtime_jobs.errors import NotRetryable
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, ProjectFactory
from tests.orchestrator.results.conftest import CONFIG_PROJECT, execution

pytestmark = pytest.mark.django_db(transaction=True)


def metric(name: str, value: float = 1.0, measure: str = "latency") -> str:
    return json.dumps({name: {measure: {"value": value}}})


def output(*texts: str) -> bytes:
    return encode_output([{"exit_code": 0, "stdout": text} for text in texts])


def failed(job: Job) -> tuple[str, str | None]:
    return job.state, job.failure_reason


# --- the outcome ------------------------------------------------------------------------------------------------------


def test_a_readable_result_is_a_success_with_its_metrics():
    run = execution()
    run.store(output(metric("a", 1), metric("b", 2)))
    process(run.complete())
    assert run.fresh().state == JobState.SUCCEEDED
    assert run.metrics() == [(0, "a", "Latency", 1.0), (1, "b", "Latency", 2.0)]
    assert (run.outcome().metric_count, run.outcome().error) == (2, "")


def test_no_results_are_a_success_without_metrics():
    run = execution()
    run.store(output())
    process(run.complete())
    assert run.fresh().state == JobState.SUCCEEDED
    assert run.metrics() == []


def test_anything_unreadable_fails_the_job():
    run = execution()
    run.store(output(metric("a"), "no JSON"))
    process(run.complete())
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_UNREADABLE)
    assert "adapter json" in (run.job.failure_message or "")
    assert run.metrics() == []
    assert run.outcome().error == run.job.failure_message


def test_a_missing_output_fails_the_job_for_another_reason():
    run = execution()
    process(run.complete())
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_MISSING)


def test_a_store_that_fails_costs_the_job_only_its_output(monkeypatch):
    run = execution()
    monkeypatch.setattr(
        durable_files.DurableFileStorage, "_save", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
    )
    body = output(metric("a"))
    assert run.store(body) is None
    process(run.complete(), body)
    assert run.fresh().state == JobState.SUCCEEDED
    assert run.metrics() == [(0, "a", "Latency", 1.0)]
    assert read_output(CONFIG_PROJECT, uuid_of(run.job.job_ulid)) is None


def test_the_output_is_stored_under_the_project_of_the_configuration(store):
    run = execution()
    run.store(b"{}")
    path = store / str(CONFIG_PROJECT) / "output" / "v0" / "jobs" / str(uuid_of(run.job.job_ulid))
    assert path.read_bytes() == b"{}"


def test_a_job_whose_report_was_deleted_succeeds_without_metrics_and_the_log_says_so(caplog):
    run = execution()
    models.Report.objects.all().delete()
    run.store(output(metric("a")))
    process(run.complete())
    assert run.fresh().state == JobState.SUCCEEDED
    assert "has no report any more" in caplog.text


def test_a_bug_of_an_adapter_does_not_leave_the_job_behind(monkeypatch):
    run = execution()
    run.store(output(metric("a")))
    monkeypatch.setattr(processing, "read_body", lambda *_: 1 / 0)
    process(run.complete())
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_UNREADABLE)


# --- the settings -----------------------------------------------------------------------------------------------------


def test_the_adapter_is_that_of_the_report():
    run = execution(adapter="go_bench")
    run.store(output("BenchmarkFib-8 \t 10\t 325 ns/op\n"))
    process(run.complete())
    assert run.metrics() == [(0, "BenchmarkFib-8", "Latency", 325.0)]


def test_the_fold_is_that_of_the_configuration():
    run = execution(fold="max")
    run.store(output(metric("a", 1), metric("a", 3), metric("a", 2)))
    process(run.complete())
    assert run.metrics() == [(0, "a", "Latency", 3.0)]


def test_the_average_is_that_of_the_configuration():
    stats = {"mean": 2e-9, "stddev": 1e-9, "median": 5e-9, "iqr": 1e-9}
    text = json.dumps({"benchmarks": [{"fullname": "a", "stats": stats}]})
    run = execution(adapter="python_pytest", average="median")
    run.store(output(text))
    process(run.complete())
    assert run.metrics() == [(0, "a", "Latency", pytest.approx(5.0))]


# --- the times --------------------------------------------------------------------------------------------------------


def test_the_report_has_the_times_of_the_execution():
    run = execution()
    run.store(output())
    process(run.complete(seconds=60))
    found = run.outcome()
    assert (found.start_time, found.end_time) == (run.started, run.started + timedelta(seconds=60))
    assert found.duration_seconds == 60


def test_a_backdate_replaces_the_start_and_keeps_the_duration():
    run = execution(backdate="2020-01-02T03:04:05Z")
    run.store(output())
    process(run.complete(seconds=60))
    found = run.outcome()
    assert found.start_time.isoformat() == "2020-01-02T03:04:05+00:00"
    assert found.end_time - found.start_time == timedelta(seconds=60)
    assert found.duration_seconds == 60


@pytest.mark.parametrize("backdate", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:00Z"])
def test_a_backdate_without_a_date_after_it_does_not_leave_the_job_behind(backdate):
    """A job of an earlier release may have it: the end of its report is no date."""
    run = execution(backdate=backdate)
    run.store(output(metric("a")))
    process(run.complete(seconds=60))
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_UNREADABLE)
    assert (run.metrics(), run.outcome().error) == ([], "The adapter failed.")


def test_a_result_that_is_read_again_has_the_same_times():
    """The end is when the result arrived, not when it was read."""
    run = execution()
    run.store(output())
    job = run.complete(seconds=60)
    read_again(job, now=run.started + timedelta(seconds=3000))
    assert run.outcome().end_time == run.started + timedelta(seconds=60)


def test_a_duration_is_never_negative_and_fits_its_column():
    run = execution()
    job = run.complete()
    job.executing_at = job.phase_at + timedelta(seconds=5)
    assert processing._report_result(job, run.report, 0, None).duration_seconds == 0
    job.executing_at = job.phase_at - timedelta(days=365 * 200)
    assert processing._report_result(job, run.report, 0, None).duration_seconds == MAX_DURATION


# --- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.LOST])
def test_a_job_with_a_report_has_no_further_attempt(state):
    """The report names the first attempt: the metrics of another one would be in no report, and its minutes billed."""
    run = execution()
    expiry.expire(job_ulid=run.job.job_ulid)
    if state == JobState.FAILED:
        late_results.give_up(job_ulid=run.job.job_ulid, now=run.fresh().late_result_at)
    with pytest.raises(NotRetryable, match="Submit a new run"):
        retries.retry(job_ulid=run.job.job_ulid, actor=ALICE, reason="again")
    assert (run.fresh().state, Job.objects.count()) == (state, 1)


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_result_that_is_read_twice_is_stored_once():
    run = execution()
    run.store(output(metric("a")))
    job = run.complete()
    process(job)
    process(job)
    assert run.metrics() == [(0, "a", "Latency", 1.0)]
    assert JobEvent.objects.filter(job=run.job, to_state=JobState.SUCCEEDED).count() == 1


def test_two_processes_that_read_at_the_same_time_store_once():
    run = execution()
    run.store(output(metric("a")))
    job, both_have_read = run.complete(), threading.Barrier(2, timeout=60)
    original = late_results.settle

    def settle(**arguments):
        both_have_read.wait()
        return original(**arguments)

    def read() -> None:
        try:
            process(Job.objects.get(pk=job.pk))
        finally:
            connection.close()

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(2) as pool:
        patched.setattr(late_results, "settle", settle)
        for done in [pool.submit(read), pool.submit(read)]:
            done.result(120)
    assert run.metrics() == [(0, "a", "Latency", 1.0)]
    assert run.fresh().state == JobState.SUCCEEDED
    assert models.Benchmark.objects.count() == models.Measure.objects.count() == 1


@pytest.mark.parametrize(("module", "name"), [(unit_of_work, "write_changes"), (transitions, "transition")])
def test_a_process_that_dies_while_it_settles_has_stored_nothing(monkeypatch, module, name):
    """Metrics and the end of the job are one transaction: the result is read once more, and its metrics are there once."""
    run = execution()
    run.store(output(metric("a")))
    job = run.complete()
    original = getattr(module, name)

    def die(*arguments, **options):
        original(*arguments, **options)
        raise SystemExit

    monkeypatch.setattr(module, name, die)
    with pytest.raises(SystemExit):
        process(job)
    monkeypatch.undo()
    assert (run.fresh().state, run.metrics()) == (JobState.PROCESSING, [])
    read_again(run.job)
    assert (run.fresh().state, run.metrics()) == (JobState.SUCCEEDED, [(0, "a", "Latency", 1.0)])


def test_a_process_that_dies_between_store_and_settle_is_replaced():
    run = execution()
    run.store(output(metric("a")))
    job = run.complete()
    assert (run.fresh().state, run.metrics()) == (JobState.PROCESSING, [])
    read_again(job)
    assert (run.fresh().state, run.metrics()) == (JobState.SUCCEEDED, [(0, "a", "Latency", 1.0)])


def test_a_job_that_has_ended_is_not_read_again(monkeypatch):
    run = execution()
    run.store(output())
    process(run.complete())
    monkeypatch.setattr(processing, "read_output", lambda *_: pytest.fail("was read"))
    read_again(run.fresh())


# --- a store that cannot be read --------------------------------------------------------------------------------------


@pytest.fixture
def broken_store(monkeypatch):
    monkeypatch.setattr(processing, "read_output", lambda *_: (_ for _ in ()).throw(PermissionError("no")))


@pytest.mark.usefixtures("broken_store")
def test_a_store_that_is_away_leaves_the_job_for_a_later_attempt():
    run = execution()
    run.store(output())
    job = run.complete()
    with pytest.raises(OSError):
        read_again(job, now=job.phase_at + timedelta(minutes=59))
    assert run.fresh().state == JobState.PROCESSING


@pytest.mark.usefixtures("broken_store")
def test_a_store_that_stays_away_has_lost_the_output():
    run = execution()
    run.store(output())
    job = run.complete()
    read_again(job, now=job.phase_at + timedelta(hours=1))
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_MISSING)
    assert "PermissionError" in (run.job.failure_message or "")


def test_an_output_that_was_stored_and_is_not_there_is_waited_for(store):
    """The folder is not mounted. A job that has succeeded must not fail for that."""
    run = execution()
    run.store(output(metric("a")))
    job = run.complete()
    store.rename(store.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError):
        read_again(job, now=job.phase_at + timedelta(minutes=59))
    assert run.fresh().state == JobState.PROCESSING
    store.with_name("elsewhere").rename(store)
    read_again(job, now=job.phase_at + timedelta(minutes=59))
    assert run.fresh().state == JobState.SUCCEEDED


# --- a result that can never be stored --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, DataError, MemoryError])
def test_any_error_that_stays_ends_the_job(monkeypatch, error):
    run = execution()
    run.store(output(metric("a")))
    job = run.complete()
    monkeypatch.setattr(processing, "build_metrics", lambda *_: (_ for _ in ()).throw(error("hunter2")))
    with pytest.raises(error):
        read_again(job, now=job.phase_at + timedelta(minutes=59))
    assert run.fresh().state == JobState.PROCESSING
    read_again(job, now=job.phase_at + timedelta(hours=1))
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_UNREADABLE)
    assert run.job.failure_message == f"The result could not be read for 1:00:00: {error.__name__}."


def test_a_lost_connection_ends_no_job(monkeypatch):
    """The attempt is the first one after an outage of the database, which may have been longer than the patience."""
    run = execution()
    job = run.complete()
    monkeypatch.setattr(processing, "read_body", lambda *_: (_ for _ in ()).throw(OperationalError("gone")))
    run.store(output())
    with pytest.raises(OperationalError):
        read_again(job, now=job.phase_at + timedelta(hours=9))
    assert run.fresh().state == JobState.PROCESSING


# --- deadlocks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def deadlocks(monkeypatch):
    """The attempts to store benchmarks; the first one ends by a deadlock."""
    attempts = []
    original = processing.names.benchmark_keys

    def benchmark_keys(project, keys):
        attempts.append(len(keys))
        if len(attempts) == 1:
            raise OperationalError("deadlock detected") from DeadlockDetected()
        return original(project, keys)

    monkeypatch.setattr(processing.names, "benchmark_keys", benchmark_keys)
    return attempts


def test_after_a_deadlock_the_names_are_stored_again(deadlocks):
    run = execution()
    run.store(output(metric("a")))
    process(run.complete())
    assert (run.fresh().state, run.metrics(), deadlocks) == (JobState.SUCCEEDED, [(0, "a", "Latency", 1.0)], [1, 1])


def test_in_a_transaction_a_deadlock_is_left_to_its_owner(deadlocks):
    run = execution()
    with pytest.raises(OperationalError), transaction.atomic():
        processing.build_metrics(run.report, [{"a": {}}])
    assert deadlocks == [0]


# --- names ------------------------------------------------------------------------------------------------------------


def test_benchmarks_and_measures_are_those_of_the_project():
    project = ProjectFactory()
    for value in (1, 2):
        run = execution(project)
        run.store(output(metric("a", value)))
        process(run.complete())
    assert models.Benchmark.objects.count() == models.Measure.objects.count() == 1
    assert models.Metric.objects.count() == 2
    other = execution(ProjectFactory(slug="other"))
    other.store(output(metric("a")))
    process(other.complete())
    assert models.Benchmark.objects.count() == 2


def test_a_benchmark_without_metrics_is_not_stored():
    run = execution()
    run.store(output(json.dumps({"empty": {}} | json.loads(metric("a")))))
    process(run.complete())
    assert (run.fresh().state, run.metrics()) == (JobState.SUCCEEDED, [(0, "a", "Latency", 1.0)])
    assert list(models.Benchmark.objects.values_list("name", flat=True)) == ["a"]


def test_two_names_of_one_benchmark_are_one_metric():
    """The slug of a benchmark is another name of it."""
    project = ProjectFactory()
    for text in (
        metric("Fib 10", 1),
        json.dumps({"Fib 10": {"latency": {"value": 2}}, "fib-10": {"Latency": {"value": 2}}}),
    ):
        run = execution(project)
        run.store(output(text))
        process(run.complete())
    assert run.metrics() == [(0, "Fib 10", "Latency", 2.0)]


def test_an_unknown_uuid_is_unreadable():
    run = execution()
    run.store(output(metric("00000000-0000-0000-0000-000000000099")))
    process(run.complete())
    assert failed(run.fresh()) == (JobState.FAILED, FailureReason.RESULT_UNREADABLE)
    assert "00000000-0000-0000-0000-000000000099" in (run.job.failure_message or "")
