"""Jobs that the scheduler process ends: silent runners, exceeded time limits, and the breakers that count them."""

import os
import sys
from datetime import timedelta

import pytest

from leases.models import Breaker, BreakerState, Lease
from orchestrator.audit.runner import run_audit
from orchestrator.core.row_batches import RowRunner
from orchestrator.incidents import breakers
from orchestrator.incidents.models import Incident
from orchestrator.maintenance.leases import expire_leases, time_out_phases
from orchestrator.services import expiry
from orchestrator.workflows.run_reads import state_of_run
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import Conclusion, FailureReason, JobState
from tests.chaos.processes import Part, manage
from tests.live_server import eventually, serving
from tests.orchestrator.protocols.shithub.conftest import error_of
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.windows import forget_heartbeats
from tests.orchestrator.protocols.shithub.world import RegisteredRunner, actions_spec, register, start_run

pytestmark = pytest.mark.django_db


def begun(runner: RegisteredRunner) -> ClaimedJobClient:
    """The next job, begun by its runner."""
    forget_heartbeats(runner)
    claimed = runner.client.claim()
    assert claimed.run().status_code == 200
    return claimed


# --- time limits ------------------------------------------------------------------------------------------------------


def test_timeout_minutes_1_and_a_runner_that_never_reports_an_end_is_timed_out_by_the_clock(runner):
    """The runner asks for a cancel all the time, so its lease lives. The server grants a minute beyond the limit."""
    started = start_run(specs=[actions_spec(timeout_minutes=1)])
    claimed = begun(runner)
    began_at = Job.objects.get(pk=started.job.pk).executing_at
    Lease.objects.update(expires_at=began_at + timedelta(seconds=150))  # as its last message has extended it
    assert time_out_phases(RowRunner(), now=began_at + timedelta(seconds=120)) == 0
    assert time_out_phases(RowRunner(), now=began_at + timedelta(seconds=121)) == 1
    job = Job.objects.get(pk=started.job.pk)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.TIMED_OUT)
    assert state_of_run(started.run).conclusion == Conclusion.TIMED_OUT
    assert {step.status for step in job.steps.all()} == {"skipped"}
    assert Job.objects.count() == 1, "no retry"
    error_of(claimed.check_cancel(), 404)
    assert claimed.end("timed_out").json()["conclusion"] == "timed_out", "the same end, also by the runner"
    assert run_audit(chains=True) == []


def test_a_runner_that_reports_its_time_limit_twice_is_counted_once(runner, counted):
    from orchestrator.core import counters  # noqa: PLC0415
    from tests.orchestrator.protocols.shithub.test_job_calls import spare  # noqa: PLC0415

    started = start_run(specs=[actions_spec(timeout_minutes=1)])
    claimed = begun(runner)
    tokens = spare(claimed)
    for token in tokens[:2]:
        body = {"status": "completed", "conclusion": "timed_out"}
        path = f"steps/{claimed.steps[0]['id']}/status"
        assert claimed.call(path, body, token=token).status_code == 200
    for token in tokens[2:]:
        response = claimed.call("status", {"status": "completed", "conclusion": "timed_out"}, token=token)
        assert (response.status_code, response.json()["run_conclusion"]) == (200, "timed_out")
    assert counted.count(counters.STEP_TIMEOUTS) == 1
    assert started.job.events.filter(event_type="job.failed").count() == 1


# --- silent runners ---------------------------------------------------------------------------------------------------


def test_a_runner_that_is_silent_after_running_loses_its_job_at_its_ttl(runner, run):
    claimed = begun(runner)
    lease = Lease.objects.get()
    assert lease.ttl_seconds == 60
    assert expire_leases(RowRunner(), now=lease.expires_at - timedelta(microseconds=1)) == 0
    assert expire_leases(RowRunner(), now=lease.expires_at) == 1
    job = Job.objects.get()
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.LEASE_EXPIRED)
    start_run()
    found = runner.client.claim()
    assert found.job["id"] != claimed.job["id"]
    assert found.run().status_code == 200


@pytest.mark.parametrize("is_noticed_late", [False, True])
def test_timeout_minutes_1_and_a_silent_runner_is_timed_out_by_the_clock(runner, is_noticed_late):
    """The lease of 60 s and the time limit end at the same time. No report can come, so there is no grace."""
    started = start_run(specs=[actions_spec(timeout_minutes=1)])
    claimed = begun(runner)
    lease, job = Lease.objects.get(), Job.objects.get(pk=started.job.pk)
    assert job.executing_at + timedelta(seconds=60) == lease.expires_at
    late = timedelta(seconds=90 if is_noticed_late else 0)
    assert expire_leases(RowRunner(), now=lease.expires_at - timedelta(microseconds=1)) == 0
    assert expire_leases(RowRunner(), now=lease.expires_at + late) == 1
    job.refresh_from_db()
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.TIMED_OUT)
    assert state_of_run(started.run).conclusion == Conclusion.TIMED_OUT
    assert {step.status for step in job.steps.all()} == {"skipped"}
    assert Job.objects.count() == 1, "no retry"
    error_of(claimed.end("failure"), 404)
    assert claimed.end("timed_out").json()["run_conclusion"] == "timed_out"
    assert run_audit(chains=True) == []


def test_a_runner_whose_lease_expires_before_the_time_limit_is_lost_however_late_that_is_noticed(runner):
    start_run(specs=[actions_spec(timeout_minutes=2)])
    begun(runner)
    expires_at = Lease.objects.get().expires_at
    assert expire_leases(RowRunner(), now=expires_at + timedelta(hours=1)) == 1
    assert Job.objects.get().failure_reason == FailureReason.LEASE_EXPIRED


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_killed_runner_and_a_scheduler_process(database_url, tmp_path, settings):
    """Real processes: server, scheduler, and a runner that gets SIGKILL after its `running`."""
    ttl = settings.ACTIONS_LEASE_SECONDS = 15  # stored with the job; the runner needs it until it is `running`
    variables = {
        "DATABASE_URL": database_url,
        "ACTIONS_ROOT_KEY": "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=",
        "STATE_DIR": str(tmp_path / "state"),
    }
    runner = register()
    started = start_run()
    script = """
import json, sys, time, urllib.request
url, token = sys.argv[1:]
def post(path, token, body):
    headers = {"Authorization": "Bearer " + token}
    return json.load(urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), headers)))
found = post("/api/v1/runners/heartbeat", token, {"labels": ["ubuntu-latest"]})
post("/api/v1/jobs/%d/status" % found["job"]["id"], found["token"], {"status": "running"})
print("begun", flush=True)
time.sleep(600)
"""
    with serving(tmp_path, **variables) as server:
        environment = {**os.environ, **variables}
        command = [sys.executable, "-c", script, server.url, runner.client.registration]
        process = Part("runner", command, environment, tmp_path / "runner.log")
        clock = Part("clock", manage("runclock", "--period", "0.5"), environment, tmp_path / "clock.log")
        try:
            process.start()
            eventually(lambda: process.log.read_text() == "begun\n")
            process.kill()
            clock.start()
            eventually(lambda: Job.objects.get(pk=started.job.pk).is_final, 120)
        finally:
            process.kill()
            clock.end(30)
        job, lease = Job.objects.get(pk=started.job.pk), Lease.objects.get()
        assert (job.failure_reason, Job.objects.count()) == (FailureReason.LEASE_EXPIRED, 1)
        assert lease.expires_at - lease.last_heartbeat_at == timedelta(seconds=ttl)
        assert job.finished_at >= lease.expires_at
        start_run()
        assert runner.client.heartbeat().status_code == 200, "the runner claims again"
    assert run_audit(chains=True) == []


# --- breakers ---------------------------------------------------------------------------------------------------------


def evaluate(organization: str) -> Breaker | None:
    """Evaluate the breaker of an organization as the scheduler does, after all ends."""
    later = database_now() + timedelta(seconds=150)
    breakers.evaluate_breaker(org_slug=organization, job_type="actions", now=later)
    return Breaker.objects.filter(org_slug=organization, job_type="actions").first()


def test_ten_red_jobs_open_no_breaker(runner):
    organization = start_run().run.repository.project.organization.slug
    begun(runner).end("failure")
    for conclusion in ("failure", "timed_out", "action_required") * 3:
        start_run()
        begun(runner).end(conclusion)
    assert Job.objects.filter(state=JobState.FAILED).count() == 10
    found = evaluate(organization)
    assert found is None or found.state == BreakerState.CLOSED
    assert not Incident.objects.exists()
    start_run()
    forget_heartbeats(runner)
    assert runner.client.heartbeat().status_code == 200


def test_ten_lost_runners_open_the_breaker(runner):
    for _ in range(10):
        organization = start_run().run.repository.project.organization.slug
        claimed = begun(runner)
        lease = Lease.objects.get(job__pk=claimed.job["id"])
        job = expiry.expire(job_ulid=Job.objects.get(pk=claimed.job["id"]).job_ulid, now=lease.expires_at)
        assert job.failure_reason == FailureReason.LEASE_EXPIRED
    found = evaluate(organization)
    assert found is not None
    assert found.state == BreakerState.OPEN
    assert Incident.objects.filter(kind="breaker").count() == 1
    start_run()
    forget_heartbeats(runner)
    assert runner.client.heartbeat().status_code == 204
