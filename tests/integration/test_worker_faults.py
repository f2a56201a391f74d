"""Workers that die, hang and start again, with a real server, scheduler and database. Every test ends with the audit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from leases.models import Lease
from orchestrator.incidents.models import Incident
from orchestrator.ingest.models import Run
from orchestrator.services import cancellation
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, JobEvent, LogChunk
from tests.factories import OPERATOR
from tests.integration.conftest import SEEN_WITHIN, Yard
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import processes_with
from workers.models import Worker

pytestmark = pytest.mark.slow

SHORT = 15  # a lease's seconds where a test waits for its end
LONG = 60  # where a restarted worker must be in time


def marked_sleep(seconds: int) -> str:
    """A number that `sleep` takes and that no other process of this machine has in its command line."""
    return f"{seconds}.{uuid.uuid4().int % 10**12:012}1"  # no zero at the end: a float prints it as it is


def log_of(job_ulid: str) -> bytes:
    return b"".join(
        bytes(chunk)
        for chunk in LogChunk.objects.filter(job_id=job_ulid).order_by("seq").values_list("chunk", flat=True)
    )


def left(yard: Yard, folder: str) -> list[Path]:
    """Return what the worker has at this path."""
    return list((yard.root / "one" / folder).iterdir())


def assert_ended_after_silence(job: Job, silent_at: datetime) -> None:
    """Check that the lease ended by its own time, which no heartbeat moved after the worker fell silent."""
    lease = Lease.objects.get(job_id=job.job_ulid)
    last_heartbeat = timedelta(seconds=5)  # which the server may have received, and not yet handled
    assert lease.expires_at <= silent_at + timedelta(seconds=SHORT) + last_heartbeat
    assert lease.completed_at >= lease.expires_at


def test_a_job_runs_from_its_submission_to_its_run(yard: Yard) -> None:
    job = yard.submit("null", "print=hello", "exit=3")
    worker = yard.start(yard.enrol("one"), "--once")
    assert worker.end() == 0, worker.log
    done = yard.ended(job)
    assert (done.public_status, done.exit_code) == ("uploaded", 3)
    assert done.ingest_run_id == Run.objects.get(job_id=job.job_ulid).run_id
    assert log_of(job.job_ulid) == b"hello\n"
    phases = JobEvent.objects.filter(job_id=job.job_ulid).order_by("seq").values_list("to_state", flat=True)
    assert [phase for phase in phases if phase] == [
        "queued", "leased", "starting", "checking_out", "executing", "uploading", "succeeded",
    ]  # fmt: skip


def test_a_worker_killed_while_the_command_runs_costs_one_attempt_and_leaves_no_process(yard: Yard) -> None:
    mark = marked_sleep(10)
    script = f"trap '' TERM; (setsid nohup sleep {mark} >/dev/null 2>&1 &); sleep {mark}; echo done"
    job = yard.submit("sh", "-c", script, ttl=SHORT)
    token = yard.enrol("one")
    worker = yard.start(token, engine="bubblewrap")
    yard.until(job, lambda found: found.state == "executing")
    wait_until(lambda: len(processes_with(mark)) >= 3)
    worker.signal(signal.SIGKILL)
    killed_at = database_now()
    wait_until(lambda: not processes_with(mark), 5.0)  # a second, on a machine that is not overloaded
    worker.end()
    failed = yard.ended(job)
    assert (failed.state, failed.failure_reason) == ("failed", "lease_expired")
    assert_ended_after_silence(job, killed_at)
    (retry,) = yard.retries_of(job)
    yard.start(token, "--once", engine="bubblewrap")
    assert yard.ended(retry).public_status == "uploaded"
    assert log_of(retry.job_ulid) == b"done\n"
    assert yard.retries_of(retry) == []
    assert Run.objects.count() == 1


def test_a_worker_killed_around_ingest_s_answer_delivers_the_same_run_after_its_restart(yard: Yard) -> None:
    """Each life of the worker is killed one step later than the one before. The last one has time to finish."""
    job = yard.submit("null", "print=x", "exit=0", ttl=2 * LONG)
    token = yard.enrol("one")
    before: list[str] = []
    for failpoint in ("worker.upload.sent", "worker.ingest.acked", "worker.complete.send"):
        assert yard.start(token, ORCH_FP=f"{failpoint}=kill").end() == -signal.SIGKILL, failpoint
        runs = list(Run.objects.values_list("run_id", flat=True))
        # A server that sees in time that the client has disconnected stores nothing.
        if failpoint != "worker.upload.sent":
            assert len(runs) == 1, failpoint
        assert runs[: len(before)] == before, failpoint
        assert yard.until(job, lambda found: True).state == "uploading", failpoint
        before = runs
    yard.start(token)
    done = yard.ended(job)
    (run,) = Run.objects.all()
    assert (done.public_status, done.ingest_run_id) == ("uploaded", run.run_id)
    assert before == [run.run_id]
    assert yard.retries_of(job) == []
    wait_until(lambda: not left(yard, "spool"))


def test_a_cancel_is_obeyed_in_time_by_a_command_that_ignores_it(yard: Yard) -> None:
    mark = marked_sleep(300)
    job = yard.submit("sh", "-c", f"trap '' TERM INT; echo before; (setsid sleep {mark} &); sleep {mark}", ttl=LONG)
    yard.start(yard.enrol("one"), engine="bubblewrap")
    yard.until(job, lambda found: found.state == "executing")
    wait_until(lambda: log_of(job.job_ulid) == b"before\n")
    assert processes_with(mark)
    cancellation.cancel(job_ulid=job.job_ulid, actor=OPERATOR, message="enough", deadline_seconds=30)
    asked = time.monotonic()
    canceled = yard.ended(job, 32)
    assert time.monotonic() - asked < 32
    assert canceled.state == "canceled"
    assert not processes_with(mark), "dead before the message was sent"
    assert log_of(job.job_ulid) == b"before\n"
    lease = Lease.objects.get(job_id=job.job_ulid)
    assert lease.ended_reason == "canceled", "by the worker's word, not by the clock"


def test_a_worker_killed_before_it_acknowledged_costs_no_attempt(yard: Yard) -> None:
    """Its first life is killed when it has sent the claim, the second one when it has the answer."""
    job = yard.submit("null", "exit=0", acknowledge_within=10)
    token = yard.enrol("one")
    assert yard.start(token, ORCH_FP="worker.claim.sent=kill").end() == -signal.SIGKILL
    assert yard.start(token, ORCH_FP="worker.claimed=kill").end() == -signal.SIGKILL
    # A server that sees in time that the first client has disconnected grants nothing.
    leased = yard.until(job, lambda found: True)
    granted_in_vain = leased.requeue_count + 1
    assert (leased.state, leased.fence) == ("leased", granted_in_vain)
    assert granted_in_vain in {1, 2}
    assert yard.until(job, lambda found: found.requeue_count == granted_in_vain).state == "queued"
    yard.start(token)
    done = yard.ended(job)
    assert done.requeue_count == granted_in_vain
    assert (done.public_status, done.attempt, done.fence) == ("uploaded", 1, 1 + granted_in_vain)
    assert yard.retries_of(job) == []


def test_a_worker_killed_after_it_acknowledged_costs_one_attempt(yard: Yard) -> None:
    """Each life of the worker is killed at a later place of an attempt of its own. The last attempt succeeds."""
    failpoints = ("worker.checkout", "worker.exec.before", "worker.upload.before")
    first = attempt = yard.submit("null", "print=x", "exit=0", ttl=LONG, retries=len(failpoints))
    failed = []
    token = yard.enrol("one")
    for failpoint in failpoints:
        assert yard.start(token, ORCH_FP=f"{failpoint}=kill").end() == -signal.SIGKILL, failpoint
        yard.lapse(attempt)
        ended = yard.ended(attempt)
        assert (ended.state, ended.failure_reason) == ("failed", "lease_expired"), failpoint
        assert Run.objects.count() == 0, failpoint
        failed.append(ended)
        (attempt,) = yard.retries_of(attempt)
    yard.start(token)
    done = yard.ended(attempt)
    assert (done.public_status, done.attempt, failed[0].pk) == ("uploaded", 1 + len(failpoints), first.pk)
    for job in failed:
        assert yard.until(job, lambda found: True).failure_reason == "lease_expired", "a late result changes nothing"
    wait_until(lambda: not left(yard, "spool") and not left(yard, "jobs"))


def test_a_worker_killed_at_full_capacity_has_its_place_back_when_it_starts_again(yard: Yard) -> None:
    """Leases of its last process count against its capacity; it ends them itself instead of waiting for their expiry."""
    job = yard.submit("null", "sleep=300", ttl=600)
    token = yard.enrol("one")
    Worker.objects.update(capacity=1)
    worker = yard.start(token)
    yard.until(job, lambda found: found.state == "executing")
    worker.signal(signal.SIGKILL)
    worker.end()
    other = yard.submit("null", "print=x", "exit=0")
    yard.start(token)
    failed = yard.ended(job)
    assert (failed.state, failed.failure_reason) == ("failed", "worker_shutdown")
    (retry,) = yard.retries_of(job)
    cancellation.cancel(job_ulid=retry.job_ulid, actor=OPERATOR, deadline_seconds=10)
    assert yard.ended(other).public_status == "uploaded"
    assert yard.ended(retry).state == "canceled"
    wait_until(lambda: not left(yard, "spool"))


def test_a_worker_that_slept_through_its_lease_says_nothing_of_use(yard: Yard) -> None:
    mark = marked_sleep(300)
    job = yard.submit("sh", "-c", f"echo mine; sleep {mark}", ttl=SHORT)
    sleeper = yard.start(yard.enrol("sleeper"), engine="bubblewrap")
    yard.until(job, lambda found: found.state == "executing")
    wait_until(lambda: processes_with(mark))
    sleeper.signal(signal.SIGSTOP)
    stopped_at = database_now()
    assert yard.ended(job).failure_reason == "lease_expired"
    assert processes_with(mark) == [], "two copies of a job would run"
    assert_ended_after_silence(job, stopped_at)
    (retry,) = yard.retries_of(job)
    cancellation.cancel(job_ulid=retry.job_ulid, actor=OPERATOR, deadline_seconds=10)
    before = JobEvent.objects.filter(job_id=job.job_ulid).count()
    sleeper.signal(signal.SIGCONT)
    wait_until(lambda: "stopping the job" in sleeper.log)
    sleeper.signal(signal.SIGTERM)
    assert sleeper.end() == 0
    assert JobEvent.objects.filter(job_id=job.job_ulid).count() == before
    assert Run.objects.count() == 0


def test_a_worker_that_sleeps_between_its_last_look_and_its_word_is_fenced_off(yard: Yard) -> None:
    job = yard.submit("null", "exit=0", ttl=LONG)
    mark = marked_sleep(LONG)
    sleeper = yard.start(yard.enrol("sleeper"), "--once", ORCH_FP=f"worker.complete.send=stop:{mark}")
    wait_until(lambda: state_of(sleeper.process.pid) == "T")
    yard.lapse(job)
    failed = yard.ended(job)
    assert (failed.state, failed.failure_reason) == ("failed", "lease_expired")
    (retry,) = yard.retries_of(job)
    yard.start(yard.enrol("other"), "--once")
    done = yard.ended(retry)
    assert done.public_status == "uploaded"
    sleeper.signal(signal.SIGCONT)
    sleeper.end(40)
    for pid in processes_with(mark):  # what would have woken it at last
        os.kill(pid, signal.SIGKILL)
    assert yard.until(job, lambda found: True).state == "failed"
    assert list((yard.root / "sleeper" / "spool").iterdir()) == []


def test_two_jobs_run_side_by_side_and_a_drain_finishes_both(yard: Yard) -> None:
    jobs = [yard.submit("null", "print=x", "sleep=30", "exit=0") for _ in range(3)]
    worker = yard.start(yard.enrol("one"), "--capacity", "2")
    wait_until(lambda: sum(yard.until(job, lambda found: True).state == "executing" for job in jobs) == 2)
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    states = sorted(yard.until(job, lambda found: True).public_status for job in jobs)
    assert states == ["queued", "uploaded", "uploaded"]


@pytest.mark.root
def test_a_worker_goes_on_to_uids_that_no_other_worker_uses(yard: Yard) -> None:
    """Two containers, each with a /run of its own, so that neither sees the locks of the other's slots."""
    own_run = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
    mark = marked_sleep(300)
    first = yard.submit("sh", "-c", f"sleep {mark}", ttl=LONG)
    other = yard.start(yard.enrol("one"), engine="bubblewrap", container=own_run)
    yard.until(first, lambda found: found.state == "executing")
    wait_until(lambda: processes_with(mark))
    second = yard.submit("true", ttl=LONG)
    worker = yard.start(yard.enrol("two"), "--once", engine="bubblewrap", container=own_run)
    assert yard.ended(second).public_status == "uploaded"
    assert worker.end() == 0
    assert "is in use by another worker" in worker.log
    assert processes_with(mark), "the other worker's job still runs"
    other.signal(signal.SIGTERM)
    other.signal(signal.SIGTERM)


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process: `T` is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def zombies_below(pid: int) -> list[int]:
    """Children of `pid` that have ended and were not waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == pid:
                found.append(int(path.parent.name))
    return found


def test_many_jobs_leave_no_zombie(yard: Yard) -> None:
    jobs = [yard.submit("sh", "-c", "(sleep 0.05 &); (true &); true", ttl=LONG) for _ in range(8)]
    worker = yard.start(yard.enrol("one"), engine="bubblewrap")
    for job in jobs:
        assert yard.ended(job, 60).public_status == "uploaded"
    wait_until(lambda: not zombies_below(worker.process.pid))


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.root
def test_a_worker_with_a_small_disk_claims_nothing_and_says_so(yard: Yard) -> None:
    with small_disk(yard.root / "small", "512m"):  # half of what a worker keeps free
        small = yard.start(yard.enrol("small"), engine="bubblewrap")
        job = yard.submit("sleep", "1", ttl=LONG)
        reason = wait_until(lambda: Worker.objects.get(slug="small").unready_reason, SEEN_WITHIN)
        assert re.fullmatch(r"Its work directory has [\d,]+ bytes free. A job needs 1,342,177,280\.", reason)
        assert f"no claims: {reason}" in small.log
        yard.start(yard.enrol("large"), engine="bubblewrap", WORKER_RESERVE_BYTES="0", WORKER_RESERVE_INODES="0")
        assert yard.ended(job).public_status == "uploaded"
        assert Lease.objects.get(job_id=job.job_ulid).worker.slug == "large"


@pytest.mark.root
def test_a_worker_that_fails_three_jobs_in_a_row_pauses_and_others_run_them(yard: Yard) -> None:
    reserve = {"WORKER_RESERVE_BYTES": str(16 << 20), "WORKER_RESERVE_INODES": "0", "WORKER_DISK_VOLUMES": "no"}
    with small_disk(yard.root / "small", "64m"):
        small = yard.start(yard.enrol("small"), engine="bubblewrap", **reserve)
        jobs = [yard.submit("sh", "-c", "head -c 58M /dev/zero > full; sleep 3", ttl=LONG) for _ in range(3)]
        failed = [yard.ended(job) for job in jobs]
        assert {(job.state, job.failure_reason) for job in failed} == {("failed", "worker_disk_full")}
        reason = wait_until(lambda: Worker.objects.get(slug="small").unready_reason, SEEN_WITHIN)
        assert reason.startswith("3 jobs in a row failed for reasons of this worker, the last one: ")
        assert f"no claims: {reason}" in small.log
        (incident,) = Incident.objects.unresolved()
        assert (incident.kind, incident.worker_ulid) == ("worker", Worker.objects.get(slug="small").worker_id)
        yard.start(yard.enrol("large"), "--capacity", "2", engine="bubblewrap", **reserve)
        for job in jobs:
            (retry,) = yard.retries_of(job)
            assert retry.excluded_workers == [Worker.objects.get(slug="small").worker_id]
            assert yard.ended(retry).public_status == "uploaded"
