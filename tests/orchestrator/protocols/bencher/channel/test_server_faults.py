"""The end of the only server, and of connections, while many channels execute (contract 3.7), over the real server."""

import contextlib
import os
import signal
import time
from datetime import timedelta

import pytest
import requests

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.results.models import Metric
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, Organization, UsageRecord
from runtime_jobs.states import JobState
from tests.chaos.processes import Part, manage
from tests.factories import PlanFactory, api_token
from tests.live_server import eventually, serving
from tests.orchestrator.protocols.bencher.channel.scene import new_runner, new_spec, order, row
from tests.orchestrator.protocols.bencher.channel.test_server import (
    RESULTS,
    SECONDS,
    channel,
    environment,
    executing,
    status,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
CHANNELS = 20
TIMEOUT = {"RUNNER_HEARTBEAT_TIMEOUT_SECONDS": "8"}


@pytest.fixture(scope="module")
def other_server(database_url, tmp_path_factory):
    """The server that remains, or the one that comes after. It has a short timeout."""
    with serving(tmp_path_factory.mktemp("other"), **environment(database_url, **TIMEOUT)) as found:
        yield found


@pytest.fixture
def spec():
    return new_spec()


@pytest.fixture
def runner(spec):
    return new_runner(spec)


@contextlib.contextmanager
def scheduler(folder, variables):
    part = Part("clock", manage("runclock", "--period", "0.5"), {**os.environ, **variables}, folder / "clock")
    part.start()
    try:
        yield
    finally:
        part.kill()


def sent_again(server, runner, jobs) -> None:
    """Send the result of each job on a new connection."""
    with channel(server, runner) as line:
        for uuid in jobs.values():
            assert line.ask("completed", job=uuid, results=RESULTS) == {"event": "ack", "job": uuid}


def test_kill_9_of_the_only_server_while_twenty_channels_execute(tmp_path, database_url, request, spec, runner):
    """Results that are sent again count, also those of jobs that failed meanwhile. Who stays away has failed.

    There is no other server until the scheduler has ended the leases, and each ends at its own time.
    """
    jobs = [order(spec) for _ in range(CHANNELS)]
    early, late, absent = jobs[:8], jobs[8:14], jobs[14:]
    variables = environment(database_url)
    with serving(tmp_path, **variables) as server, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(channel(server, runner)) for _ in jobs]
        uuids = {job: executing(line, job) for line, job in zip(lines, jobs, strict=True)}
        server.process.kill()
        server.process.wait(SECONDS)
    assert {status(job) for job in jobs} == {"running"}
    in_time = Lease.objects.filter(job_id__in=[job.job_ulid for job in early])
    in_time.update(expires_at=database_now() + timedelta(seconds=120))  # the machine may be slow
    Lease.objects.exclude(pk__in=in_time.values("pk")).update(expires_at=database_now())
    with scheduler(tmp_path, variables):
        eventually(lambda: {status(job) for job in [*late, *absent]} == {"failed"})
    assert set(Lease.objects.open()) == set(in_time)
    server = request.getfixturevalue("other_server")
    assert {status(job) for job in early} == {"running"}
    sent_again(server, runner, {job: uuids[job] for job in early})
    assert {status(job) for job in early} == {"processed"}
    sent_again(server, runner, {job: uuids[job] for job in late})
    assert {status(job) for job in late} == {"processed"}
    assert {status(job) for job in absent} == {"failed"}
    Job.objects.filter(state=JobState.LOST).update(late_result_at=database_now())
    metrics = Metric.objects.count()
    sent_again(server, runner, {job: uuids[job] for job in absent})
    assert {status(job) for job in absent} == {"failed"}, "acknowledged, and nothing has changed"
    assert Metric.objects.count() == metrics
    assert {row(job).state for job in absent} == {JobState.FAILED}
    assert not Lease.objects.open().exists()
    assert [str(finding) for finding in run_audit(chains=True)] == []


def test_after_sigterm_another_process_takes_the_reconnects(tmp_path, database_url, other_server, spec, runner):
    """Idle, waiting and executing channels are closed with 1001. No job changes, and results are taken elsewhere."""
    jobs = [order(spec) for _ in range(4)]
    with serving(tmp_path, **environment(database_url)) as server, contextlib.ExitStack() as stack:
        idle, waiting, *busy = (stack.enter_context(channel(server, runner)) for _ in range(2 + len(jobs)))
        uuids = {job: executing(line, job) for line, job in zip(busy, jobs, strict=True)}
        waiting.send("ready", poll_timeout=60)
        assert waiting.is_silent()
        before = [(row(job).state, row(job).updated_at) for job in jobs], list(Lease.objects.values())
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        ends = [line.end() for line in (idle, waiting, *busy)]
        assert {(end.code, end.reason) for end in ends} == {(1001, "server shutting down")}
        assert time.monotonic() - began < SECONDS
        assert ([(row(job).state, row(job).updated_at) for job in jobs], list(Lease.objects.values())) == before
        server.process.wait(SECONDS)
        sent_again(other_server, runner, uuids)
    assert {status(job) for job in jobs} == {"processed"}
    assert [str(finding) for finding in run_audit(chains=True)] == []


def test_silence_past_the_time_limit_cancels_the_job(other_server, settings, spec, runner):
    settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS = 8
    settings.RUNNER_TIMEOUT_GRACE_SECONDS = 1
    job = order(spec, timeout=1)
    with channel(other_server, runner) as line:
        executing(line, job)
        found = line.end()
        assert (found.code, found.reason) == (1000, '"job_timeout_exceeded"')
        assert (status(job), row(job).failure_reason) == ("canceled", "timed_out")


def test_ledger_watermark_and_usage_agree(tmp_path, database_url, other_server, spec, runner):
    """Repeated beats and results bill nothing, also if the server was killed before its answer was read."""
    PlanFactory(max_timeout_seconds=10_000)
    minutes = {order(spec, timeout=10_000): expected for expected in (1, 2, 121)}
    uuids, billed = {}, {}
    with serving(tmp_path, **environment(database_url)) as server, contextlib.ExitStack() as stack:
        for job, expected in minutes.items():
            line = stack.enter_context(channel(server, runner))
            uuids[job] = executing(line, job)
            begun = row(job).executing_at - timedelta(seconds=60 * (expected - 1) + (expected > 1))
            Job.objects.filter(pk=job.pk).update(executing_at=begun)
            for _ in range(3):
                assert line.ask("heartbeat")["event"] == "ack"
            billed[job] = records(job)
            line.send("heartbeat")
            line.send("completed", job=uuids[job], results=RESULTS)
            eventually(lambda job=job: row(job).state == JobState.SUCCEEDED)
        server.process.kill()
        server.process.wait(SECONDS)
    sent_again(other_server, runner, uuids)
    usage = {job: usage_of(other_server, job) for job in minutes}
    for job, expected in minutes.items():
        found = records(job)
        assert found[: len(billed[job])] == billed[job], "no record is changed"
        assert sum(record["minutes"] for record in found) == expected == row(job).last_billed_minute
        assert usage[job] == [(job.job_ulid, record["minute"], record["minutes"]) for record in found]
        assert JobEvent.objects.of(job.job_ulid).filter(event_type="job.completed").count() == 1
    assert [finding for finding in run_audit() if finding.code.startswith("U")] == []


def usage_of(server, job):
    """The records of the job's organization by the API, oldest first."""
    token = api_token(Organization.objects.get(slug=job.org_slug))
    answer = requests.get(f"{server.url}/v1/usage", headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS)
    return [(record["job_id"], record["minute"], record["minutes"]) for record in reversed(answer.json()["results"])]


def records(job):
    return list(UsageRecord.objects.filter(job_ulid=job.job_ulid).order_by("id").values())
