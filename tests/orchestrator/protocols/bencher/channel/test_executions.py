"""Whole executions: how many statements each message costs, and what ends with a small result."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.audit.runner import run_audit
from orchestrator.protocols.bencher.channel import claims, operations
from orchestrator.protocols.bencher.channel.messages import CompletedFrame
from orchestrator.protocols.bencher.channel.operations import leased_job
from orchestrator.protocols.bencher.channel.session import Reply
from orchestrator.results import models, names, processing
from orchestrator.results.processing import SMALL_OUTPUT_BYTES, process
from runtime_jobs.models import JobEvent, UsageRecord
from runtime_jobs.states import JobState
from tests.factories import ProjectFactory
from tests.orchestrator.protocols.bencher.channel.scene import held_by, mark_running, new_runner, new_spec, order, row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("store")]
RESULTS = ({"exit_code": 0, "stdout": '{"fibonacci":{"latency":{"value":12.5}}}'},)
# With names that the process knows. A native execution costs two for each message.
STATEMENTS = {"ready": 3, "running": 2, "heartbeat": 2, "completed": 3}


@pytest.fixture
def store(tmp_path, settings):
    backend = "orchestrator.core.durable_files.DurableFileStorage"
    settings.STORAGES = settings.STORAGES | {"outputs": {"BACKEND": backend, "OPTIONS": {"location": tmp_path}}}


@pytest.fixture
def project():
    return ProjectFactory()


@pytest.fixture
def runner():
    return new_runner(new_spec())


def submit(project, runner) -> models.Report:
    """A waiting job of the project, with the report that its result is for."""
    job = order(runner.specs.get(), owner=project)
    now = timezone.now()
    branch, testbed = names.get_or_create_branch(project, "main"), names.get_or_create_testbed(project, "box")
    return models.Report.objects.create(
        project=project, job=job, branch=branch, testbed=testbed, start_time=now, end_time=now
    )


def running(runner):
    job = held_by(runner)
    assert mark_running(job) is Reply.ACK
    return job


def events_of(job) -> list[tuple[str, int]]:
    return list(JobEvent.objects.of(job.handle.job_ulid).order_by("seq").values_list("event_type", "xid"))


def is_clean() -> None:
    assert [str(finding) for finding in run_audit(chains=True)] == []


def test_an_execution_costs_few_statements_and_no_transaction(project, runner):
    counted: dict[str, list[str]] = {}

    def count(name, send, *arguments):
        with CaptureQueriesContext(connection) as made:
            result = send(*arguments)
        counted[name] = [query["sql"][:60] for query in made]
        return result

    for _ in range(2):  # the first one stores the names
        report = submit(project, runner)
        found = count("ready", claims.claim_for_channels, [runner])[0]
        job = leased_job(found.claimed.lease, runner)
        count("running", mark_running, job)
        count("heartbeat", operations.renew_leases, [job])
        count("completed", operations.finish, job, CompletedFrame(job.uuid, RESULTS))
        assert row(job).state == JobState.SUCCEEDED
        assert models.Metric.objects.filter(report=report).count() == 1
    assert {name: len(found) for name, found in counted.items()} == STATEMENTS, counted
    is_clean()


def test_a_small_result_and_the_end_of_its_job_are_one_transaction(project, runner):
    report = submit(project, runner)
    job = running(runner)
    outcome = operations.finish(job, CompletedFrame(job.uuid, RESULTS))
    assert (outcome.reply, outcome.unread_job, row(job).state) == (Reply.ACK, None, JobState.SUCCEEDED)
    (processing_event, first), (end, second) = events_of(job)[-2:]
    assert (processing_event, end, first) == ("job.processing", "job.completed", second)
    stored = models.ReportResult.objects.get(report=report)
    assert (stored.end_time, stored.metric_count) == (row(job).finished_at, 1)
    assert UsageRecord.objects.get().minute == 1
    assert operations.finish(job, CompletedFrame(job.uuid, RESULTS)).reply is Reply.ACK, "a repetition"
    assert models.Metric.objects.count() == 1
    is_clean()


def test_a_large_result_is_read_after_it_has_arrived(project, runner):
    submit(project, runner)
    job = running(runner)
    large = ({"exit_code": 0, "stdout": RESULTS[0]["stdout"], "stderr": "x" * SMALL_OUTPUT_BYTES},)
    outcome = operations.finish(job, CompletedFrame(job.uuid, large))
    assert (outcome.reply, row(job).state) == (Reply.ACK, JobState.PROCESSING)
    assert not models.ReportResult.objects.exists()
    process(outcome.unread_job, outcome.output)
    assert (row(job).state, models.Metric.objects.count()) == (JobState.SUCCEEDED, 1)


def test_what_was_read_and_cannot_be_stored_is_read_again(project, runner):
    """A name was deleted since this process has read it."""
    for _ in range(2):
        submit(project, runner)
    first = running(runner)
    operations.finish(first, CompletedFrame(first.uuid, RESULTS))
    models.Metric.objects.all().delete()
    models.Benchmark.objects.all().delete()
    job = running(runner)
    outcome = operations.finish(job, CompletedFrame(job.uuid, RESULTS))
    assert (outcome.reply, row(job).state) == (Reply.ACK, JobState.PROCESSING)
    process(outcome.unread_job, outcome.output)
    assert (row(job).state, models.Metric.objects.count()) == (JobState.SUCCEEDED, 1)


def test_a_result_that_cannot_be_read_now_is_accepted(project, runner, monkeypatch):
    submit(project, runner)
    job = running(runner)
    monkeypatch.setattr(processing, "build_metrics", lambda *_: (_ for _ in ()).throw(MemoryError("on purpose")))
    outcome = operations.finish(job, CompletedFrame(job.uuid, RESULTS))
    assert (outcome.reply, row(job).state) == (Reply.ACK, JobState.PROCESSING)
    monkeypatch.undo()
    process(outcome.unread_job, outcome.output)
    assert row(job).state == JobState.SUCCEEDED
