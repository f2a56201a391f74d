"""Queues or cancels the jobs that depend on a job that has ended.

The transaction that ends a job only stores that it has dependents (`EndedDependency`). After the commit, the same
process handles up to `INLINE_LIMIT` of them in another transaction. The scheduler handles the rest page by page, and
all of them if that process died. So the time of an operation does not grow with the number of dependents, and no
operation waits for their locks.
"""

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import Error

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services import dependencies, transitions
from orchestrator.services.dependencies import DependencyStatus
from runtime_jobs.db_errors import is_connection_lost, is_database_unavailable
from runtime_jobs.db_time import database_now
from runtime_jobs.models import EndedDependency, Job
from runtime_jobs.specs import JOB_TYPES, JobReadiness
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

INLINE_LIMIT = 8  # dependents that are handled before the caller has its response
PAGE = 50  # dependents that the scheduler handles in one transaction


@operation
def unblock(uow: UnitOfWork, *, job_ulids: Sequence[str], now: datetime | None = None) -> list[EndedDependency]:
    """Queue blocked jobs whose dependencies have all ended as they need it, and cancel those with a failed one.

    The type of a job may hold or skip a job whose dependencies are met: see `JobType.readiness`.

    The status of the dependencies is read under the locks of the blocked jobs: if two dependencies end at the same
    time, the later call sees both.

    Args:
        job_ulids: Ids of jobs. Those that are not blocked are left alone.

    Returns:
        The completions of jobs that were canceled here and have dependents themselves. The caller propagates them: a
        long chain of jobs must not become a deep recursion.
    """
    blocked = Job.objects.locked().filter(job_ulid__in=job_ulids, state=JobState.BLOCKED)
    unblock_locked(uow, list(blocked.order_by("pk")), now=now or database_now())
    return uow.take_after_commit(propagate_completions)


def unblock_locked(uow: UnitOfWork, jobs: Sequence[Job], *, now: datetime) -> None:
    """Decide on locked blocked jobs within another operation; see `unblock`."""
    statuses = dependencies.get_statuses(jobs)
    for job in jobs:
        _apply_status(uow, job, statuses[job.pk], now)


def _apply_status(uow: UnitOfWork, job: Job, status: DependencyStatus, now: datetime) -> None:
    if status.failed is not None:
        transitions.cancel_for_dependency(uow, job, status.failed, now=now)
    elif not status.is_met:
        return
    else:
        decide = JOB_TYPES[job.job_type].readiness
        match decide(job) if decide else JobReadiness.READY:
            case JobReadiness.READY:
                transitions.unblock(uow, job, now=now)
            case JobReadiness.SKIPPED:
                transitions.skip(uow, job, now=now)
            case JobReadiness.HELD:
                return
    transitions.mark_changed(uow, job, now)


def propagate_end(*, uow: UnitOfWork, job: Job, **_: Any) -> None:
    """Store that a job with dependents has ended (`job_ended`), and handle them after the commit.

    If this process dies in between, the scheduler finds the row.
    """
    if job.awaited:
        completion = EndedDependency(root_job_ulid=job.root_job_ulid)
        uow.extra_rows.append(completion)
        uow.after_commit(propagate_completions, completion)


def propagate_completions(completions: Sequence[EndedDependency]) -> None:
    """Handle up to `INLINE_LIMIT` dependents of jobs that have just ended, after the commit. Never raises."""
    queue, left = deque(completions), INLINE_LIMIT
    try:
        while queue and left > 0:
            handled, caused = propagate_completion(queue.popleft(), limit=left)
            queue.extend(caused)
            left -= handled
    except Error as error:
        if is_database_unavailable(error):
            log.debug("dependents are left to the scheduler: %s", type(error).__name__)
        else:
            log.exception("propagation to dependents failed; the scheduler retries")


def propagate_completion(
    completion: EndedDependency, *, limit: int, failed: list[int] | None = None
) -> tuple[int, list[EndedDependency]]:
    """Handle the next dependents of one job that has ended, and delete its row after the last one.

    Two processes may do this at once or again: `unblock` decides under the lock. A dependent that fails does not stop
    the others. It gets a row of its own for another try.

    Args:
        completion: The row of the job that has ended.
        limit: The maximum number of dependents to handle.
        failed: Receives the keys of rows that were added for dependents that failed.

    Returns:
        The number of dependents, and the completions of dependents that were canceled.
    """
    found = dependencies.find_dependents(completion, limit=limit + 1)
    page = found[:limit]
    failures, caused = _unblock_each(page)
    if failures:
        again = EndedDependency.objects.create(root_job_ulid=completion.root_job_ulid, looked_to=min(failures) - 1)
        if failed is not None:
            failed.append(again.pk)
    row = EndedDependency.objects.filter(pk=completion.pk)
    if len(found) > limit:
        row.update(looked_to=page[-1][0])
    else:
        row.delete()
    return len(page), caused


def _unblock_each(jobs: Sequence[tuple[int, str]]) -> tuple[list[int], list[EndedDependency]]:
    """Unblock a page in one transaction, or each job in its own if that fails.

    One transaction for each would keep the scheduler from everything else.

    Returns:
        The keys of the jobs that failed, and the completions that were caused.
    """
    if not jobs:
        return [], []
    try:
        return [], unblock(job_ulids=[job_ulid for _, job_ulid in jobs])
    except Exception as error:
        if is_connection_lost(error):
            raise
        if len(jobs) > 1:
            results = [_unblock_each([job]) for job in jobs]
            return [pk for failures, _ in results for pk in failures], [row for _, caused in results for row in caused]
        log.exception("unblock of %s failed; the scheduler retries in its next round", jobs[0][1])
        return [jobs[0][0]], []


def propagate_pending(*, limit: int) -> int:
    """Handle up to `limit` dependents of jobs that have ended. The scheduler calls this in each round.

    A dependent that fails gets a new row for the next call. In this call it would be tried again and again.

    Returns:
        The number of dependents that were handled.
    """
    done, failed = 0, list[int]()
    while done < limit:
        pending = EndedDependency.objects.exclude(pk__in=failed).order_by("pk")
        if not (rows := list(pending[: limit - done])):
            break
        before = done
        for completion in rows:
            if done < limit:
                done += propagate_completion(completion, limit=min(PAGE, limit - done), failed=failed)[0]
        if done == before:
            break
    return done
