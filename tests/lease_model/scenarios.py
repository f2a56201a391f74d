"""Short stories for the machine, each around one guard: its own rules and checks, in an order that chance seldom finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db import transaction

from runtime_jobs.states import CancelReason, FailureReason, JobState
from tests.lease_model.settling_machine import LATE, SettlingMachine
from tests.lease_model.state_machine import LeaseMachine

Story = Callable[[Any], Iterator[object]]  # of one of the machines; everything is checked at each `yield`


def tell(story: Story) -> None:
    """Raises whatever the machine finds wrong with it."""
    machine = SettlingMachine() if story in SETTLING_STORIES else LeaseMachine()
    try:
        machine.begin()
        for _ in story(machine):
            machine.audit_is_empty()
            machine.a_final_state_stays()
        machine.drain()
    finally:
        transaction.set_rollback(True)
        machine.example.__exit__(None, None, None)


def beats_and_ends(m: LeaseMachine) -> Iterator[object]:
    yield m.submit()
    handle = m.claim(who=0, acknowledge=True)
    yield m.heartbeat(handle)
    yield m.advance(20)
    yield m.heartbeat(handle)
    yield m.report(handle, JobState.EXECUTING)
    yield m.complete(handle, same=True)
    yield m.complete(handle, same=True)
    yield m.complete(handle, same=False)
    yield m.fail(handle, FailureReason.WORKER_ERROR)


def reports_at_once(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.report(m.claim(who=0, acknowledge=False), JobState.EXECUTING)


def speaks_after_revocation(m: LeaseMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.revoke(job)
    yield m.heartbeat(handle)
    yield m.complete(handle, same=True)


def speaks_at_the_last_moment(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.advance(119)
    m.advance(1)
    yield m.heartbeat(handle)
    yield m.complete(handle, same=True)


def speaks_too_late(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.advance(121)
    yield m.report(handle, JobState.EXECUTING)
    yield m.complete(handle, same=True)


def speaks_for_another(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.speak_for_another(m.claim(who=0, acknowledge=False), who=1)


def cancels_unasked(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.acknowledge_cancel(m.claim(who=0, acknowledge=False))


def a_clock_is_early(m: LeaseMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.a_clock_looks(job)
    yield m.report(handle, JobState.EXECUTING)
    yield m.advance(31)
    yield m.a_clock_looks(job)
    yield m.cancel(job, CancelReason.REQUESTED)
    yield m.a_clock_looks(job)


def falls_silent_while_it_runs(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.report(m.claim(who=0, acknowledge=False), JobState.EXECUTING)
    yield m.fall_silent()


def dies_again_and_again(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.die_again_and_again(who=0, times=3)


def is_never_acknowledged(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    yield m.never_acknowledge(who=0, times=7)


def fails_when_asked_to_cancel(m: LeaseMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.cancel(job, CancelReason.REQUESTED)
    yield m.fail(handle, FailureReason.WORKER_SHUTDOWN)


def succeeds_after_the_deadline(m: LeaseMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.cancel(job, CancelReason.REQUESTED)
    m.advance(31)
    yield m.complete(handle, same=True)


def claims_more_than_it_can_hold(m: LeaseMachine) -> Iterator[object]:
    for _ in range(5):
        m.submit()
    for _ in range(5):
        yield m.claim(who=0, acknowledge=False)


def several_claim_at_once(m: LeaseMachine) -> Iterator[object]:
    """One of them cannot run the oldest job."""
    m.submit()
    yield m.release(m.claim(who=0, acknowledge=False), unable=True)
    for _ in range(3):
        m.submit()
    yield m.claim_together(order=[0, 1, 2], limit=1, acknowledge=False)
    yield m.claim_together(order=[2, 0, 1], limit=2, acknowledge=True)


def is_retried_too_soon_and_too_often(m: LeaseMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.retry(job)
    yield m.fail(handle, FailureReason.WORKER_ERROR)
    yield m.retry(job)
    yield m.retry(job)


def renews_while_it_is_revoked(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.advance(20)
    yield m.renew_a_lease_that_changes(handle, CancelReason.REQUESTED, is_revoked=True)


def renews_at_once_while_it_is_revoked(m: LeaseMachine) -> Iterator[object]:
    """The lease would get no longer, so there is nothing to write."""
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.renew_a_lease_that_changes(handle, CancelReason.REQUESTED, is_revoked=True)


def renews_while_it_is_canceled(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.advance(20)
    yield m.renew_a_lease_that_changes(handle, CancelReason.REQUESTED, is_revoked=False)


def beats_past_the_limit(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.report(handle, JobState.EXECUTING)
    for _ in range(4):
        yield m.advance(119)
        yield m.heartbeat(handle)
    yield m.heartbeat(handle)


def stops_by_itself(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=True)
    yield m.stop_by_worker(handle)
    yield m.stop_by_worker(handle)
    yield m.acknowledge_cancel(handle)


def two_workers_beat_together(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    m.submit()
    one, two = m.claim(who=0, acknowledge=True), m.claim(who=1, acknowledge=False)
    yield m.heartbeat_together(one, two)
    yield m.heartbeat_for_one_another(one, two)
    m.report(two, JobState.EXECUTING)
    for _ in range(4):
        m.advance(119)
        yield m.heartbeat_together(one, two)


# --- jobs that settle -------------------------------------------------------------------------------------------------


def a_result_is_read(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=True)
    yield m.settle(job, None)
    yield m.execute_and_complete(handle, same=True)
    yield m.complete(handle, same=True)
    yield m.cancel(job, CancelReason.REQUESTED)
    yield m.give_up(job)
    yield m.settle(job, None)
    yield m.settle(job, FailureReason.RESULT_UNREADABLE)
    yield m.complete_late(handle)


def a_result_is_unreadable(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    yield m.execute_and_complete(m.claim(who=0, acknowledge=False), same=True)
    yield m.settle(job, FailureReason.RESULT_UNREADABLE)
    yield m.retry(job)


def completes_before_it_executes(m: SettlingMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=True)
    yield m.complete(handle, same=True)
    yield m.acknowledge(handle)
    yield m.complete(handle, same=True)
    yield m.complete_late(handle)


def reports_late(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.execute_and_lose(handle)
    yield m.give_up(job)
    yield m.settle(job, None)
    yield m.heartbeat(handle)
    yield m.complete(handle, same=True)
    yield m.complete(handle, same=True)
    yield m.settle(job, None)


def reports_too_late(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.execute_and_lose(handle)
    yield m.advance(LATE - 1)
    yield m.give_up(job)
    yield m.advance(1)
    yield m.complete(handle, same=True)
    yield m.complete_late(handle)
    yield m.give_up(job)
    yield m.complete_late(handle)


def is_given_up_and_reports_too_late(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.execute_and_lose(handle)
    yield m.advance(LATE)
    yield m.give_up(job)
    yield m.complete_late(handle)


def an_older_worker_reports_late(m: SettlingMachine) -> Iterator[object]:
    m.submit(requeues=1)
    old = m.claim(who=0, acknowledge=True)
    m.advance(31)
    yield m.tick()
    new = m.claim(who=1, acknowledge=False)
    yield m.execute_and_lose(new)
    yield m.complete(old, same=True)
    yield m.complete_late(old)
    yield m.complete_late(new)
    yield m.complete_late(old)


def fails_and_then_reports_a_result(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.report(handle, JobState.EXECUTING)
    yield m.fail(handle, FailureReason.COMMAND_FAILED)
    yield m.fail(handle, FailureReason.COMMAND_FAILED)
    yield m.complete(handle, same=True)
    yield m.fail(handle, FailureReason.COMMAND_FAILED)
    yield m.settle(job, None)


def is_canceled_after_it_was_lost(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.execute_and_lose(handle)
    yield m.cancel(job, CancelReason.REQUESTED)
    yield m.complete_late(handle)


def is_silent_after_a_cancel(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.report(handle, JobState.EXECUTING)
    m.advance(100)
    yield m.cancel(job, CancelReason.REQUESTED)
    m.advance(20)
    yield m.a_clock_looks(job)
    yield m.complete_late(handle)


def is_retried_after_it_was_lost(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    yield m.execute_and_lose(handle)
    yield m.retry(job)
    yield m.complete_late(handle)


def is_revoked_and_reports_late(m: SettlingMachine) -> Iterator[object]:
    job = m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.report(handle, JobState.EXECUTING)
    yield m.revoke(job)
    yield m.complete(handle, same=True)


def is_lost_before_it_was_acknowledged(m: SettlingMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=True)
    m.advance(31)
    yield m.tick()
    yield m.acknowledge(handle)
    yield m.complete_late(handle)


SETTLING_STORIES: tuple[Story, ...] = (
    a_result_is_read,
    a_result_is_unreadable,
    completes_before_it_executes,
    reports_late,
    reports_too_late,
    is_given_up_and_reports_too_late,
    an_older_worker_reports_late,
    fails_and_then_reports_a_result,
    is_canceled_after_it_was_lost,
    is_silent_after_a_cancel,
    is_retried_after_it_was_lost,
    is_revoked_and_reports_late,
    is_lost_before_it_was_acknowledged,
)
STORIES: tuple[Story, ...] = (
    *SETTLING_STORIES,
    beats_past_the_limit,
    stops_by_itself,
    two_workers_beat_together,
    renews_while_it_is_revoked,
    renews_at_once_while_it_is_revoked,
    renews_while_it_is_canceled,
    beats_and_ends,
    reports_at_once,
    speaks_after_revocation,
    speaks_at_the_last_moment,
    speaks_too_late,
    speaks_for_another,
    cancels_unasked,
    a_clock_is_early,
    falls_silent_while_it_runs,
    dies_again_and_again,
    is_never_acknowledged,
    fails_when_asked_to_cancel,
    succeeds_after_the_deadline,
    claims_more_than_it_can_hold,
    several_claim_at_once,
    is_retried_too_soon_and_too_often,
)
