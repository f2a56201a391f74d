"""Short stories for the machine, each around one guard: its own rules and checks, in an order that chance seldom finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.db import transaction

from runtime_jobs.states import CancelReason, FailureReason, JobState
from tests.lease_model.state_machine import LeaseMachine

Story = Callable[[LeaseMachine], Iterator[object]]  # everything is checked at each `yield`


def tell(story: Story) -> None:
    """Raises whatever the machine finds wrong with it."""
    machine = LeaseMachine()
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


def renews_while_it_is_canceled(m: LeaseMachine) -> Iterator[object]:
    m.submit()
    handle = m.claim(who=0, acknowledge=False)
    m.advance(20)
    yield m.renew_a_lease_that_changes(handle, CancelReason.REQUESTED, is_revoked=False)


STORIES: tuple[Story, ...] = (
    renews_while_it_is_revoked,
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
    is_retried_too_soon_and_too_often,
)
