"""The lease protocol of jobs that settle: a late result counts, and a result is read before the job ends.

The rules of the other machine hold here, too. Some jobs wait again if their lease is not acknowledged, so that a job can
be lost after an earlier worker had it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from orchestrator.services import cancellation, heartbeat, job_end, late_results
from orchestrator.services.claiming import Claimed
from orchestrator.services.job_end import ReadResult
from runtime_jobs.errors import AlreadyFinal, LifecycleError
from runtime_jobs.models import Job
from runtime_jobs.states import FINAL_STATES, RESULT_FAILURES, SETTLING_STATES, CancelReason, JobState
from tests.factories import ALICE, LATE_POLICY, submitted_steps
from tests.lease_model.state_machine import LeaseMachine, images

LATE = LATE_POLICY.late_result_seconds


class SettlingMachine(LeaseMachine):
    jobs = LeaseMachine.jobs
    handles = LeaseMachine.handles
    job_types = ("steps",)

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, str] = {}  # the state that reading a result has led to

    @rule(target=jobs, requeues=st.sampled_from([0, 1, 1]))
    def submit(self, requeues: int = 0) -> str:
        policy = replace(LATE_POLICY, max_requeues=requeues)
        return submitted_steps(self.project, policy=policy, now=self.now).job_ulid

    @rule(handle=handles, same=st.booleans())
    def complete(self, handle: Claimed, same: bool) -> None:
        self.runs += 1
        before = Job.objects.get(pk=handle.job.pk)
        answer = self.speak(handle, job_end.complete, exit_code=0 if same else self.runs)
        self.result_is_legal(before, handle, answer)

    @rule(handle=handles)
    def complete_late(self, handle: Claimed) -> None:
        """By the job's id, as a worker does that has forgotten its lease."""
        before, rows = Job.objects.get(pk=handle.job.pk), images()
        job, worker = before.job_ulid, handle.lease.worker
        answer = self.attempt(
            lambda: late_results.complete_late(job_ulid=job, worker=worker, exit_code=0, now=self.now)
        )
        newest = before.leases.latest("fence")
        if newest.worker_id != worker.worker_id:
            assert isinstance(answer, LifecycleError), "only the worker of the newest lease has a result"
        if isinstance(answer, LifecycleError):
            assert images() == rows, "a refused result changes nothing"
        elif images() != rows and answer.state != JobState.FAILED:
            self.last_words[newest.pk] = ("complete", {"exit_code": 0})
        self.result_is_legal(before, handle, answer)

    def result_is_legal(self, before: Job, handle: Claimed, answer: Any) -> None:
        after = Job.objects.get(pk=before.pk)
        if after.state == before.state:
            return
        if after.state == JobState.PROCESSING:
            assert before.state in {JobState.EXECUTING, JobState.UPLOADING, JobState.LOST}, "nothing executed before"
            if before.state == JobState.LOST:
                assert before.late_result_at
                assert self.now < before.late_result_at, "too late"
        elif after.state == JobState.FAILED:
            assert before.state == JobState.LOST, "a result fails no job"
            assert self.now >= before.late_result_at, "but one whose window has ended"
            assert isinstance(answer, Job), "and by the job's id"
        else:
            assert after.state == JobState.CANCELED, "a result is read before the job succeeds"
            assert before.cancel_requested_at

    @rule(job=jobs, reason=st.sampled_from(CancelReason))
    def cancel(self, job: str, reason: CancelReason) -> None:
        before, rows = Job.objects.get(job_ulid=job), images()
        answer = self.attempt(
            lambda: cancellation.cancel(job_ulid=job, actor=ALICE, deadline_seconds=30, reason=reason, now=self.now)
        )
        if before.state == JobState.PROCESSING:
            assert isinstance(answer, AlreadyFinal), "a result that has arrived is not canceled"
            assert images() == rows
        elif before.state == JobState.LOST:
            assert Job.objects.get(job_ulid=job).state == JobState.CANCELED, "no worker has to stop"

    @rule(job=jobs, failure=st.sampled_from([None, None, *RESULT_FAILURES]))
    def settle(self, job: str, failure: Any) -> None:
        before, rows = Job.objects.get(job_ulid=job), images()
        answer = late_results.settle(job_ulid=job, read_result=ReadResult(failure), now=self.now)
        assert (answer is not None) == (before.state == JobState.PROCESSING), "a result is settled once"
        if answer is None:
            assert images() == rows

    @rule(job=jobs)
    def give_up(self, job: str) -> None:
        before = Job.objects.get(job_ulid=job)
        if late_results.give_up(job_ulid=job, now=self.now):
            assert before.late_result_at
            assert self.now >= before.late_result_at, "no job is given up early"

    @rule(handle=handles)
    def execute_and_lose(self, handle: Claimed) -> None:
        self.report(handle, JobState.EXECUTING)
        self.fall_silent()

    @rule(handle=handles, same=st.booleans())
    def execute_and_complete(self, handle: Claimed, same: bool) -> None:
        self.report(handle, JobState.EXECUTING)
        self.complete(handle, same=same)

    def limits_hold(self) -> None:
        super().limits_hold()
        for job in Job.objects.filter(state__in=SETTLING_STATES):
            assert not job.leases.filter(completed_at=None).exists(), "a job that settles holds no lease"
            if job.state == JobState.LOST:
                assert job.cancel_requested_at is None, "a cancel ends a lost job at once"

    def finish(self, claimed: Claimed) -> None:
        message = {"lease_ulid": claimed.lease.lease_ulid, "worker": claimed.lease.worker, "now": self.now}
        heartbeat.report(**message, phase=JobState.EXECUTING)
        job_end.complete(**message, exit_code=0)
        late_results.settle(job_ulid=claimed.job.job_ulid, now=self.now)

    def drain(self) -> None:
        for job in Job.objects.filter(state=JobState.PROCESSING):
            late_results.settle(job_ulid=job.job_ulid, now=self.now)
        self.now += timedelta(seconds=LATE)
        super().drain()
        assert not Job.objects.exclude(state__in=FINAL_STATES).exists()
