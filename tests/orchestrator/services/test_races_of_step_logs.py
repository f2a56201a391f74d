"""Pairs of append, end and finalize of one log, in both orders: no byte is lost or doubled.

The first one holds a lock until the second one waits for it, or has ended without it. `PROOF_ROUNDS` makes it longer.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from leases.models import Lease
from orchestrator.core import unit_of_work
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.secrets import masks as job_masks
from orchestrator.services import job_end, pruning
from orchestrator.step_logs import finalizing, objects, step_log_writes
from orchestrator.step_logs.steps import StepChange, change_step, lock_step
from runtime_jobs.db_time import database_now
from runtime_jobs.models import DiscardedLogObject, JobStep, LogChunk, StepLog
from runtime_jobs.states import Conclusion, FailureReason, StepStatus
from tests.orchestrator.services.operation_pairs import Ring
from tests.orchestrator.step_logs.logs import append, log_of, new_steps, text_of
from tests.suite_functions import audit_findings

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("PROOF_ROUNDS", "1"))
MASKS = (b"hunter2-and-more",)
FIRST, NEXT = b"one hunt", b"ing two\n"  # the first chunk holds back what may become the secret
WHOLE = FIRST + NEXT
REPEAT = b"ING TWO\n"
REST, MASKED = b"er2-and-more\n", b"one ***\n"


@pytest.fixture(autouse=True)
def storage(settings, tmp_path, monkeypatch):
    """A storage of this test, and the masks of its jobs."""
    artifacts = settings.STORAGES["artifacts"] | {"OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = settings.STORAGES | {"artifacts": artifacts}
    monkeypatch.setattr(job_masks, "masks_of", lambda _: MASKS)
    monkeypatch.setattr(unit_of_work, "_RETRYABLE_SQLSTATES", frozenset())  # a deadlock is an error here


@pytest.fixture
def meeting(monkeypatch):
    """Two threads that meet after each lock of a log, and after its object was written."""
    ring = Ring()

    def gated(module: Any, name: str) -> None:
        lock = getattr(module, name)

        def locked(*args: Any) -> Any:
            found = lock(*args)
            ring.gate.pass_through()
            return found

        monkeypatch.setattr(module, name, locked)

    for module, names in (
        (step_log_writes, ("create_log", "find_log", "lock_log_by_key")),
        (finalizing, ("lock_log_by_key",)),
    ):
        for name in names:
            gated(module, name)
    gated(objects, "write_object")
    ring.gate.open.set()
    ring.gate.arrived.set()
    try:
        yield ring
    finally:
        ring.close()


@dataclass(frozen=True)
class LogScene:
    """A step, as a call has read it before it waits for a lock."""

    step: JobStep

    @property
    def key(self) -> int:
        return log_of(self.step).pk


@operation
def end_step(uow: UnitOfWork, step: JobStep) -> bool:
    """End a step as the call of a runner does."""
    locked = lock_step(step.job, step.pk)
    assert locked is not None
    is_changed = change_step(uow, locked, StepChange(StepStatus.COMPLETED, Conclusion.SUCCESS), now=database_now())
    step_log_writes.close_step_log(uow, step=locked)
    return is_changed


ACTIONS: dict[str, Callable[[LogScene], Any]] = {
    "append_first": lambda scene: append(scene.step, 0, FIRST, MASKS).is_new,
    "append": lambda scene: append(scene.step, 1, NEXT, MASKS).is_new,
    "append_rest": lambda scene: append(scene.step, 1, REST, MASKS).is_new,
    "repeat": lambda scene: append(scene.step, 1, REPEAT, MASKS).is_new,
    "close": lambda scene: end_step(scene.step),
    "finalize": lambda scene: finalizing.finalize_log(scene.key),
    "flush": lambda scene: step_log_writes.flush_late_chunks(key=scene.key),
}
# Places to meet at: a first chunk finds no log, and creates it; finalizing flushes, begins an attempt, writes the object
# and commits the attempt.
PLACES = {"append_first": 2, "finalize": 4}
# What the log has before the two meet, and which chunks it has at the end.
NOTHING, OPEN, CLOSED, LATE = "no log", "an open log", "a closed log", "a late chunk that holds back"
PAIRS = [
    *[(NOTHING, pair, FIRST) for pair in (("append_first", "append_first"), ("append_first", "close"))],
    *[(OPEN, pair, WHOLE) for pair in (("append", "repeat"), ("append", "close"))],
    (OPEN, ("append_rest", "flush"), MASKED),
    *[(OPEN, pair, FIRST) for pair in (("close", "close"), ("close", "finalize"))],
    *[(state, ("append", "finalize"), WHOLE) for state in (OPEN, CLOSED, LATE)],
    *[(state, pair, WHOLE) for state in (CLOSED, LATE) for pair in (("append", "repeat"), ("append", "flush"))],
    *[(state, ("finalize", "finalize"), FIRST) for state in (OPEN, CLOSED, LATE)],
    (LATE, ("flush", "flush"), FIRST),
    (LATE, ("close", "flush"), FIRST),
]


def scene_in(state: str, step: JobStep) -> LogScene:
    if state == LATE:
        end_step(step)
        append(step, 0, FIRST, MASKS)
    elif state != NOTHING:
        append(step, 0, FIRST, MASKS)
        if state == CLOSED:
            end_step(step)
    return LogScene(JobStep.objects.select_related("job").get(pk=step.pk))


def assert_in_place(step: JobStep, text: bytes) -> None:
    """Check that a log has what it had before, and that what is in no row is in the object."""
    assert text_of(step).startswith(text)
    log = StepLog.objects.filter(job_id=step.job_id, step=step.index).first()
    if log is None:
        return
    rows = b"".join(
        bytes(chunk)
        for _, chunk in sorted(LogChunk.objects.filter(job_id=step.job_id, step=step.index).values_list("seq", "chunk"))
    )
    stored = objects.read_object(log.object_key, 0, log.object_bytes) if log.object_key else b""
    assert stored + rows == text_of(step)
    assert len(stored + rows) == log.stored_bytes


def settled(step: JobStep) -> bytes:
    """Return the log after the step has ended, and housekeeping has done what is left."""
    log = log_of(step)
    assert log.needs_finalizing or log.stored_bytes == log.object_bytes, "housekeeping would forget the rest"
    end_step(step)
    key = log_of(step).pk
    if log_of(step).needs_finalizing:
        assert key in finalizing.logs_to_finalize(), "housekeeping would not find the log"
    finalizing.finalize_log(key)
    log = log_of(step)
    assert (log.held, log.needs_finalizing, log.waiting_count) == (None, False, 0)
    assert log.object_bytes == log.stored_bytes
    assert not LogChunk.objects.filter(job_id=step.job_id, step=step.index).exists()
    return text_of(step)


@pytest.mark.parametrize("is_reversed", [False, True], ids=["first_then_second", "second_then_first"])
def test_of_two_calls_that_meet_at_one_log_no_byte_is_lost_or_doubled(meeting, is_reversed):
    for _ in range(ROUNDS):
        steps = iter(new_steps(max(PLACES.values()) * len(PAIRS)))
        for state, pair, expected in PAIRS:
            if is_reversed and pair[0] == pair[1]:
                continue
            first, second = reversed(pair) if is_reversed else pair
            for place in range(PLACES.get(first, 1)):
                step = next(steps)
                scene = scene_in(state, step)
                before = text_of(step) if state != NOTHING else b""
                answers = meeting.meet_in_order(
                    functools.partial(ACTIONS[first], scene),
                    functools.partial(ACTIONS[second], scene),
                    place=place,
                    between=functools.partial(assert_in_place, step, before),
                )
                story = (state, first, place, second, answers)
                assert not [answer for answer in answers if isinstance(answer, Exception)], story
                assert_in_place(step, before)
                if first == second == "append_first":
                    assert sorted(answers) == [False, True], story
                elif {first, second} == {"append", "repeat"}:
                    assert answers == [True, False], story
                if first == "repeat":
                    expected = FIRST + REPEAT  # noqa: PLW2901 the first one of a number counts
                assert_closed(step, story)
                assert settled(step) == expected, story
    assert audit_findings() == []


def test_retention_waits_for_the_object_of_a_log(meeting):
    (step,) = new_steps()
    append(step, 0, FIRST, MASKS)
    lease = Lease.objects.get()
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=FailureReason.WORKER_ERROR)
    later = database_now() + timedelta(days=1)
    finalized, deleted = meeting.meet_in_order(
        functools.partial(finalizing.finalize_log, log_of(step).pk),
        functools.partial(pruning.delete_finished_jobs, job_ids=[step.job.pk], finished_before=later),
        place=3,
        between=functools.partial(assert_in_place, step, b"one "),
    )
    assert (finalized, deleted["step_logs"], deleted["runtime_job_steps"]) == (True, 1, 1)
    assert DiscardedLogObject.objects.count() == 1, "housekeeping would not delete the object"


def assert_closed(step: JobStep, story: Any) -> None:
    """Check that the log of an ended step is closed: otherwise what it holds back is never stored."""
    step.refresh_from_db()
    assert not step.is_ended or log_of(step).closed_at is not None, story
