"""The real runner's order of calls against the real server: it completes a job, fails one, is canceled, goes stale."""

import stat
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest
import requests
from django.core.management import CommandError, call_command

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.services import cancellation, worker_state
from runtime_jobs.models import FailureExplanation, Job, JobEvent
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, OPERATOR, PoolFactory, WorkerFactory, submitted_steps
from tests.live_server import eventually, serving
from tests.orchestrator.protocols.delta.runners.runner import Runner
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
NAME = "local-worker"


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url) as found:
        yield found


@pytest.fixture
def start(project, server, tmp_path):
    """Submit a job, grant its lease into a file, and start the runner from that."""
    WorkerFactory(slug=NAME, pool=PoolFactory(trusts_lease_ids=True))

    def started(**spec) -> Runner:
        submitted_steps(project, **spec)
        return Runner(server.url, granted_file(tmp_path), NAME, tmp_path)

    return started


def granted_file(folder):
    path = folder / "lease.json"
    call_command("grantlease", format="delta", worker=NAME, output=path, stdout=StringIO())
    return path


def ended(runner):
    """The job, its lease, and the state changes in its history."""
    job = Job.objects.get(job_ulid=runner.lease["attempt_id"])
    moves = JobEvent.objects.of(job.job_ulid).exclude(to_state=None).values_list("to_state", flat=True)
    return job, Lease.objects.get(job=job), list(moves)


def calls_of(runner):
    return [(call, status) for call, _, status in runner.calls]


def test_it_completes_a_job(start):
    runner = start(steps=("echo made",))
    assert runner.run(during=lambda runner: runner.beat()) == 0
    job, lease, moves = ended(runner)
    assert calls_of(runner) == [("ack-lease", 200), ("heartbeat", 200), ("heartbeat", 200), ("complete", 200)]
    assert moves == ["queued", "leased", "starting", "executing", "succeeded"]
    assert (job.public_status, job.exit_code, lease.state) == ("succeeded", 0, LeaseState.COMPLETED)
    assert runner.log == b"made\n"


def test_it_fails_a_job(start):
    runner = start(name="unit-tests", steps=("exit 7",))
    assert runner.run() == 0, "the job has failed, not the runner"
    job, lease, moves = ended(runner)
    assert calls_of(runner)[-1] == ("complete", 200)
    assert moves[-1] == "failed"
    assert (job.failure_reason, job.exit_code) == (FailureReason.COMMAND_FAILED, 7)
    assert (job.failure_message, lease.state) == ("exit status 7", LeaseState.COMPLETED)
    assert FailureExplanation.objects.get(job=job).summary == "Tests failed (exit code 7)."


def test_it_is_canceled(start):
    runner = start(steps=("exec sleep 60",))

    def cancel(runner):
        job = runner.lease["attempt_id"]
        cancellation.cancel(job_ulid=job, actor=ALICE, deadline_seconds=30, message="not needed any more")
        runner.beat()

    assert runner.run(during=cancel) == 0
    job, lease, moves = ended(runner)
    assert calls_of(runner)[-2:] == [("heartbeat", 200), ("cancel-ack", 200)]
    assert moves[-1] == "canceled"
    assert (job.cancel_reason, lease.state) == ("requested", LeaseState.CANCELED)
    kinds = list(JobEvent.objects.of(job.job_ulid).values_list("event_type", flat=True))
    assert kinds[-2:] == ["job.cancel_requested", "job.canceled"]


def test_it_goes_stale(start):
    """A runner whose lease is revoked while it runs learns that with its next heartbeat and kills its step.

    Its later messages are refused. The next attempt belongs to another worker.
    """
    runner = start(steps=("exec sleep 60",))

    def lose(runner):
        job = runner.lease["attempt_id"]
        worker_state.revoke(job_ulid=job, actor=OPERATOR, reason="the machine burns")
        runner.beat()

    assert runner.run(during=lose) == 1
    job, lease, moves = ended(runner)
    assert calls_of(runner)[-2:] == [("heartbeat", 409), ("cancel-ack", 409)]
    assert moves[-1] == "failed"
    assert (job.failure_reason, lease.state) == (FailureReason.WORKER_LOST, LeaseState.REVOKED)
    assert Job.objects.get(retry_of_job_ulid=job.job_ulid).state == JobState.QUEUED


def test_a_request_for_a_lease_waits_until_there_is_work(project, server):
    worker = WorkerFactory(slug=NAME, pool=PoolFactory())
    asked = {
        "json": {"runner_id": NAME, "wait_seconds": 30},
        "headers": {"Authorization": f"Bearer {worker.token}"},
        "timeout": 60,
    }
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(requests.post, f"{server.url}/api/v1/internal/lease", **asked)
        eventually(lambda: Worker.objects.get().last_seen_at)
        job = submitted_steps(project)
        answer = waiting.result(timeout=20)
    assert (answer.status_code, answer.json()["job_id"]) == (200, job.job_ulid)


def test_two_runners_that_were_started_with_one_file_do_the_work_once(start, tmp_path):
    runner = start(steps=("echo once >> done",))
    twin = Runner(runner.url, tmp_path / "lease.json", "its-twin", tmp_path)
    assert runner.run(during=lambda _: [twin.run()]) == 0
    assert calls_of(twin) == [("ack-lease", 409)]
    assert (tmp_path / "done").read_text() == "once\n"
    assert ended(runner)[0].state == JobState.SUCCEEDED


def test_what_it_would_leave_out_stands_in_its_one_step(start, tmp_path):
    """The real runner executes the first step only, and ignores directory and environment."""
    (tmp_path / "a b").mkdir()
    runner = start(
        steps=("echo one $WHO", "cd / && WHO=changed", "echo three $WHO; pwd", "exit 5", "echo never"),
        working_directory="a b",
        environment={"WHO": "it's me; exit 1"},
    )
    assert len(runner.lease["job_spec"]["steps"]) == 1
    assert runner.run() == 0
    assert runner.log.decode().splitlines() == [
        "one it's me; exit 1", "three it's me; exit 1", str(tmp_path / "a b")
    ]  # fmt: skip
    assert ended(runner)[0].exit_code == 5


def test_one_plain_step_is_passed_on_as_it_is(start):
    assert start(steps=("make test",)).lease["job_spec"]["steps"] == ["make test"]


def test_the_file_is_for_its_owner_alone_and_replaces_another(start, tmp_path):
    (tmp_path / "lease.json").write_text("of yesterday")
    (tmp_path / "lease.json").chmod(0o666)
    start()
    assert stat.S_IMODE((tmp_path / "lease.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]


def test_without_work_there_is_no_file_and_its_own_exit_status(start, tmp_path):
    with pytest.raises(CommandError) as refusal:
        granted_file(tmp_path)
    assert refusal.value.returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [{"worker": "nobody"}, {"worker": NAME, "pool": "elsewhere"}, {"worker": NAME, "folder": "not-there"}],
    ids=["no such worker", "another pool", "no such folder"],
)
def test_what_cannot_be_granted_claims_nothing(start, project, tmp_path, options):
    submitted_steps(project)
    folder = tmp_path / options.pop("folder", ".")
    with pytest.raises(CommandError):
        call_command("grantlease", format="delta", output=folder / "lease.json", **options)
    assert Job.objects.get().state == JobState.QUEUED
    assert list(tmp_path.iterdir()) == []
