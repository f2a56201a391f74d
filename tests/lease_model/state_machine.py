"""The lease protocol as a state machine over the real operations and a real PostgreSQL, with a clock that the machine moves.

Every handle that was ever given out stays in the game: stale holders keep talking. After each step the audit is empty;
what no SQL can say (a final state never changes, a fence rises, a stale call changes nothing) is remembered here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from leases import fencing
from leases.errors import StaleLease
from leases.models import Lease
from leases.states import OPEN, LeaseState
from orchestrator.maintenance.leases import sweep
from orchestrator.services import batch_calls, cancellation, claiming, expiry, job_end, retries, worker_state
from orchestrator.services import heartbeat as service_heartbeat
from orchestrator.services.claiming import Claimed, ClaimOrder
from orchestrator.services.heartbeat import HeartbeatUpdate, renew
from orchestrator.step_logs import job_log_writes
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job, JobEvent, LogChunk
from runtime_jobs.states import FINAL_STATES, REPORTABLE_FAILURES, RUNNING_STATES, CancelReason, JobState
from tests.factories import ALICE, OPERATOR, ProjectFactory, WorkerFactory, offer, submitted
from tests.suite_functions import audit_findings

# On both sides of every deadline: 30 s to acknowledge and to cancel, 120 s of life, 600 s to prepare.
STEPS = (0.5, 1, 20, 29, 30, 31, 119, 120, 121, 600, 1000)
WORKERS = 3
CAPACITY = 3
DRAIN = 40
FINAL_WORDS = (
    *(
        job_end.complete,
        job_end.fail,
        service_heartbeat.release,
        job_end.acknowledge_cancel,
        cancellation.stop_by_worker,
    ),
)
LIMITS = {
    JobState.STARTING: ("started_at", 600),
    JobState.CHECKING_OUT: ("started_at", 600),
    JobState.EXECUTING: ("executing_at", 360),
    JobState.UPLOADING: ("phase_at", 900),
}


def images() -> list[list[dict[str, Any]]]:
    return [list(model.objects.order_by("pk").values()) for model in (Job, Lease, JobEvent, LogChunk)]


class LeaseMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")
    handles = Bundle("handles")
    job_types: tuple[str, ...] = ("runtime",)

    def __init__(self) -> None:
        super().__init__()
        self.example = transaction.atomic()
        self.example._from_testcase = True  # the operations open a transaction of their own
        self.example.__enter__()
        self.now = datetime(2026, 3, 17, 20, tzinfo=UTC)
        self.ended: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.last_words: dict[int, tuple[Any, ...]] = {}
        self.seen: list[list[dict[str, Any]]] = []
        self.runs = 0

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            transaction.set_rollback(True)
            self.example.__exit__(None, None, None)

    @initialize()
    def begin(self) -> None:
        self.project = ProjectFactory()
        self.workers = [WorkerFactory(capacity=CAPACITY) for _ in range(WORKERS)]

    # --- clients and operators ----------------------------------------------------------------------------------------

    @rule(target=jobs)
    def submit(self) -> str:
        return submitted(self.project, now=self.now).job_ulid

    @rule(job=jobs, reason=st.sampled_from(CancelReason))
    def cancel(self, job: str, reason: CancelReason) -> None:
        self.attempt(
            lambda: cancellation.cancel(job_ulid=job, actor=ALICE, deadline_seconds=30, reason=reason, now=self.now)
        )

    @rule(target=jobs, job=jobs)
    def retry(self, job: str) -> Any:
        answer = self.attempt(lambda: retries.retry(job_ulid=job, actor=OPERATOR, reason="again", now=self.now))
        return multiple() if isinstance(answer, LifecycleError) else answer.job.job_ulid

    @rule(job=jobs)
    def revoke(self, job: str) -> None:
        worker_state.revoke(job_ulid=job, actor=OPERATOR, reason="burning", now=self.now)

    # --- workers ------------------------------------------------------------------------------------------------------

    @rule(target=handles, who=st.integers(0, WORKERS - 1), acknowledge=st.booleans())
    def claim(self, who: int, acknowledge: bool) -> Any:
        worker = self.workers[who]
        offered = offer(worker, job_types=self.job_types)
        claimed = claiming.claim(worker=worker, offer=offered, acknowledge=acknowledge, now=self.now)
        if claimed is None:
            return multiple()
        self.fence_rises(claimed)
        return claimed

    @rule(
        target=handles, order=st.permutations(range(WORKERS)), limit=st.integers(1, CAPACITY), acknowledge=st.booleans()
    )
    def claim_together(self, order: list[int], limit: int, acknowledge: bool) -> Any:
        """As a process does whose clients claim at the same time."""
        workers = [self.workers[who] for who in order]
        orders = [ClaimOrder(worker, offer(worker, job_types=self.job_types), limit, acknowledge) for worker in workers]
        found = claiming.claim_for_workers(orders, now=self.now)
        claims: list[Claimed] = []
        for worker, mine in zip(workers, found, strict=True):
            assert isinstance(mine, list)
            assert len(mine) <= limit
            for claimed in mine:
                assert claimed.lease.worker_id == worker.worker_id, "each its own"
                assert worker.worker_id not in Job.objects.get(pk=claimed.job.pk).excluded_workers
                self.fence_rises(claimed)
            claims += mine
        return multiple(*claims)

    def fence_rises(self, claimed: Claimed) -> None:
        before = self.fences.get(claimed.job.job_ulid, 0)
        assert claimed.lease.fence > before, "a fence rises"
        self.fences[claimed.job.job_ulid] = claimed.lease.fence

    @rule(handle=handles)
    def acknowledge(self, handle: Claimed) -> None:
        self.speak(handle, service_heartbeat.acknowledge)

    @rule(handle=handles)
    def heartbeat(self, handle: Claimed) -> None:
        before = Lease.objects.get(pk=handle.lease.pk).expires_at
        renewed = self.speak(handle, renew, progress={"percent": 50.0})
        after = Lease.objects.get(pk=handle.lease.pk).expires_at
        if isinstance(renewed, LifecycleError):
            assert after == before, "a refused heartbeat changes nothing"
        else:
            assert after > self.now, "an accepted heartbeat leaves a live lease"
            assert after >= before, "and never a shorter one"

    @rule(handle=handles, phase=st.sampled_from(RUNNING_STATES))
    def report(self, handle: Claimed, phase: str) -> None:
        self.speak(handle, service_heartbeat.report, phase=str(phase))

    @rule(handle=handles, seq=st.integers(0, 2))
    def log(self, handle: Claimed, seq: int) -> None:
        self.speak(handle, job_log_writes.append_log, seq=seq, chunk=b"line\n")

    @rule(handle=handles, same=st.booleans())
    def complete(self, handle: Claimed, same: bool) -> None:
        self.runs += 1
        run = f"run_{handle.lease.pk}" if same else f"run_{handle.lease.pk}_{self.runs}"
        self.speak(handle, job_end.complete, ingest_run_id=run)

    @rule(handle=handles, reason=st.sampled_from(sorted(REPORTABLE_FAILURES)))
    def fail(self, handle: Claimed, reason: Any) -> None:
        self.speak(handle, job_end.fail, reason=reason)

    @rule(handle=handles, unable=st.booleans())
    def release(self, handle: Claimed, unable: bool) -> None:
        self.speak(handle, service_heartbeat.release, unable=unable)

    @rule(handle=handles)
    def acknowledge_cancel(self, handle: Claimed) -> None:
        self.speak(handle, job_end.acknowledge_cancel)

    @rule(handle=handles)
    def stop_by_worker(self, handle: Claimed) -> None:
        self.speak(handle, cancellation.stop_by_worker)

    @rule(one=handles, two=handles)
    def heartbeat_together(self, one: Claimed, two: Claimed) -> None:
        """As a process does that has connections of several workers."""
        given = {handle.lease.lease_ulid: handle for handle in (one, two)}
        renewed = {name: self.counts(handle) and not self.is_overdue(handle) for name, handle in given.items()}
        beats = {
            name: batch_calls.WorkerMessage(handle.lease.worker, HeartbeatUpdate()) for name, handle in given.items()
        }
        answers = batch_calls.renew_many(beats, now=self.now)
        for name, answer in answers.items():
            assert isinstance(answer, LifecycleError) != renewed[name], "each lease by its own rules"

    @rule(one=handles, two=handles)
    def heartbeat_for_one_another(self, one: Claimed, two: Claimed) -> None:
        """Each of two workers names the lease of the other."""
        if one.lease.worker.pk != two.lease.worker.pk:
            before = images()
            beats = {
                one.lease.lease_ulid: batch_calls.WorkerMessage(two.lease.worker, HeartbeatUpdate()),
                two.lease.lease_ulid: batch_calls.WorkerMessage(one.lease.worker, HeartbeatUpdate()),
            }
            answers = batch_calls.renew_many(beats, now=self.now)
            assert all(isinstance(answer, StaleLease) for answer in answers.values())
            assert images() == before

    @rule(handle=handles, who=st.integers(0, WORKERS - 1))
    def speak_for_another(self, handle: Claimed, who: int) -> None:
        if self.workers[who].pk != handle.lease.worker.pk:
            before = images()
            answer = self.attempt(
                lambda: renew(lease_ulid=handle.lease.lease_ulid, worker=self.workers[who], now=self.now)
            )
            assert isinstance(answer, StaleLease)
            assert images() == before

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(STEPS))
    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def tick(self) -> None:
        sweep(now=self.now)
        assert not Lease.objects.open().filter(expires_at__lte=self.now).exists(), "after a sweep no open lease is dead"

    @rule(job=jobs)
    def a_clock_looks(self, job: str) -> None:
        """At any job, also at one that it has no business with."""
        before = Job.objects.get(job_ulid=job)
        if expiry.expire(job_ulid=job, now=self.now):
            assert Lease.objects.filter(job=before).latest("fence").expires_at <= self.now, "nothing expires early"
        elif expiry.force_cancel(job_ulid=job, now=self.now):
            assert before.cancel_deadline_at
            assert before.cancel_deadline_at <= self.now, "no cancel is forced early"
        elif expiry.time_out(job_ulid=job, now=self.now):
            since = before.started_at if before.state in {"starting", "checking_out"} else before.phase_at
            assert since
            assert self.now - since > timedelta(seconds=60), "nothing is timed out early"

    # Without these the interesting depths are rarely reached.

    @rule(handle=handles)
    def acknowledge_and_beat(self, handle: Claimed) -> None:
        self.acknowledge(handle)
        self.heartbeat(handle)

    @rule(handle=handles)
    def wake_too_late(self, handle: Claimed) -> None:
        self.advance(121)
        self.heartbeat(handle)

    @rule(handle=handles)
    def speak_after_revocation(self, handle: Claimed) -> None:
        self.advance(20)
        self.revoke(handle.job.job_ulid)
        self.heartbeat(handle)

    @rule(handle=handles, reason=st.sampled_from(CancelReason), is_revoked=st.booleans())
    def renew_a_lease_that_changes(self, handle: Claimed, reason: CancelReason, is_revoked: bool) -> None:
        """A heartbeat reads job and lease; both change before it writes."""
        read, job = fencing._read_unlocked, handle.job.job_ulid
        changed: list[list[dict[str, Any]]] = []

        def read_early(*args: Any) -> Any:
            fencing._read_unlocked = read
            found = read(*args)
            self.revoke(job) if is_revoked else self.cancel(job, reason)
            changed[:] = images()
            return found

        fencing._read_unlocked = read_early
        try:
            message = {"lease_ulid": handle.lease.lease_ulid, "worker": handle.lease.worker, "now": self.now}
            progress = {"percent": 1.0} if not is_revoked else None
            answer = self.attempt(lambda: renew(**message, progress=progress))
        finally:
            fencing._read_unlocked = read
        # A heartbeat that stores nothing counts as earlier than the change: at the time of its claim there is nothing to
        # extend.
        if not self.counts(handle) and not isinstance(answer, LifecycleError):
            assert images() == changed, "a lease that has ended is not renewed"

    @rule(who=st.integers(0, WORKERS - 1), times=st.integers(1, 3))
    def die_again_and_again(self, who: int, times: int) -> None:
        for _ in range(times):
            self.claim(who=who, acknowledge=False)
            self.fall_silent()

    @rule(who=st.integers(0, WORKERS - 1), times=st.integers(4, 7))
    def never_acknowledge(self, who: int, times: int) -> None:
        for _ in range(times):
            self.claim(who=who, acknowledge=True)
            self.advance(31)
            self.tick()

    @rule()
    def fall_silent(self) -> None:
        self.advance(121)
        self.tick()

    # --- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def audit_is_empty(self) -> None:
        """Audit only after a change."""
        now = images()
        if now != self.seen:
            assert audit_findings() == []
            self.limits_hold()
        self.seen = now

    def limits_hold(self) -> None:
        for worker in self.workers:
            live = Lease.objects.open().filter(worker=worker, expires_at__gt=self.now)
            assert live.count() <= CAPACITY, "nobody holds more than it may"
        for job in Job.objects.all():
            assert job.requeue_count <= job.max_requeues, "not for ever"
            assert job.cancel_requested_at is None or job.state != "failed", "what was to be canceled does not fail"
            if job.state == "succeeded" and job.cancel_deadline_at:
                assert job.finished_at
                assert job.finished_at < job.cancel_deadline_at, "too late for a success"

    @invariant()
    def a_final_state_stays(self) -> None:
        states = dict(Job.objects.values_list("job_ulid", "state"))
        for job, state in self.ended.items():
            assert states[job] == state
        self.ended |= {job: state for job, state in states.items() if state in FINAL_STATES}

    def speak(self, handle: Claimed, say: Any, **kwargs: Any) -> Any:
        """Send a message as the holder. Of a lease that is not valid any more, only its own final message may be repeated.

        And a lost job takes the result of its newest lease, whatever that lease had as its final message."""
        before, counts, lease = images(), self.counts(handle), Lease.objects.get(pk=handle.lease.pk)
        is_late = say == job_end.complete and self.counts_late(handle)
        is_overdue = say == renew and counts and self.is_overdue(handle)
        answer = self.attempt(
            lambda: say(lease_ulid=handle.lease.lease_ulid, worker=handle.lease.worker, now=self.now, **kwargs)
        )
        name = job_end.acknowledge_cancel if say == cancellation.stop_by_worker else say  # one message for the server
        word = (name.__name__, kwargs)
        if say in FINAL_WORDS and self.last_words.get(handle.lease.pk) == word:
            assert not isinstance(answer, LifecycleError), "the same last word gets the same answer"
        if is_overdue:
            assert isinstance(answer, StaleLease), "a heartbeat of an overdue job is refused"
            ended = Lease.objects.select_related("job").get(pk=lease.pk)
            assert (ended.state, ended.ended_reason) == (LeaseState.REVOKED, "timed_out"), "and has ended the job"
            assert ended.job.state == ("canceled" if ended.job.cancel_requested_at else "failed")
        elif isinstance(answer, LifecycleError):
            assert images() == before, "a refused call changes nothing"
        elif say in FINAL_WORDS:
            if is_late:
                self.last_words[handle.lease.pk] = word
            assert self.last_words.setdefault(handle.lease.pk, word) == word, "a lease has one last word"
        after = Lease.objects.get(pk=lease.pk)
        if lease.state == after.state == LeaseState.ACTIVE:
            assert after.expires_at >= lease.expires_at, "no word makes a lease shorter"
        if not counts and not is_late:
            assert images() == before, "nobody but a living holder changes anything"
            assert isinstance(answer, LifecycleError) or self.last_words.get(handle.lease.pk) == word
        return answer

    def counts(self, handle: Claimed) -> bool:
        lease = Lease.objects.select_related("job").get(pk=handle.lease.pk)
        return lease.state in OPEN and lease.expires_at > self.now and lease.fence == lease.job.fence

    def counts_late(self, handle: Claimed) -> bool:
        lease = Lease.objects.select_related("job").get(pk=handle.lease.pk)
        job = lease.job
        return job.state == JobState.LOST and lease.fence == job.fence and self.now < job.late_result_at

    def is_overdue(self, handle: Claimed) -> bool:
        job = Job.objects.get(pk=handle.job.pk)
        since, limit = LIMITS.get(JobState(job.state), ("phase_at", 10**6))
        return self.now - getattr(job, since) > timedelta(seconds=limit)

    @staticmethod
    def attempt(act: Any) -> Any:
        try:
            return act()
        except LifecycleError as refused:
            return refused

    def finish(self, claimed: Claimed) -> None:
        """End the job with success."""
        run = f"drained_{claimed.lease.pk}"
        lease = claimed.lease
        job_end.complete(lease_ulid=lease.lease_ulid, worker=lease.worker, now=self.now, ingest_run_id=run)

    def drain(self) -> None:
        """From wherever the machine stopped: with time and one good worker everything ends."""
        worker = WorkerFactory(capacity=1000)
        for _ in range(DRAIN):
            self.now += timedelta(seconds=1001)
            sweep(now=self.now)
            offered = offer(worker, job_types=self.job_types)
            while claimed := claiming.claim(worker=worker, offer=offered, now=self.now):
                self.finish(claimed)
            if not Job.objects.exclude(state__in=FINAL_STATES).exists():
                break
        assert not Job.objects.exclude(state__in=FINAL_STATES).exists(), "everything ends"
        self.audit_is_empty()
