"""What becomes of those that wait for a job that has ended: they are queued, or canceled, or wait on.

The end of a job only writes down that there are such jobs (`EndedDependency`, in its own transaction). After the commit
its process looks at a few of them in another one; the clock at the rest, page by page, and at all of them where that
process died. So no verb grows with the number of dependents, and none waits for a lock of theirs."""

import logging
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime

from django.db import Error

from orchestrator.services import dependencies, transitions
from orchestrator.services.dependencies import DependencyStatus
from orchestrator.services.unit_of_work.operation import on_operation_committed, operation
from orchestrator.services.unit_of_work.pending import PendingChanges
from runtime_jobs.db_errors import is_connection_lost, is_database_unavailable
from runtime_jobs.db_time import database_now
from runtime_jobs.models import EndedDependency, Job
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

INLINE_LIMIT = 8  # looked at before the caller has its answer; the clock does the rest
PAGE = 50  # that the clock looks at in one transaction

_queue: ContextVar[deque[EndedDependency] | None] = ContextVar("line", default=None)


@operation
def unblock(*, job_ulids: Sequence[str], now: datetime | None = None) -> list[Job]:
    """Queue those of these blocked jobs whose dependencies have all succeeded; cancel those of which one has finally
    failed. Returns the ones that moved: the others wait on, or wait no more.

    How the others stand is read under these jobs' locks: of two that end at the same moment, the one that is looked
    after later sees both."""
    blocked = Job.objects.locked().filter(job_ulid__in=job_ulids, state=JobState.BLOCKED)
    jobs = list(blocked.order_by("pk"))
    at = now or database_now()
    standings = dependencies.standings_of(jobs)
    return [job for job in jobs if _gone_on(job, standings[job.pk], at)]


def _gone_on(job: Job, standing: DependencyStatus, at: datetime) -> bool:
    if standing.failed is not None:
        transitions.cancel_for_dependency(job, standing.failed, at=at)
    elif standing.is_met:
        transitions.unblock(job, at=at)
    else:
        return False
    transitions.mark_dirty(job, at)
    return True


@on_operation_committed
def propagate_after_commit(done: PendingChanges) -> None:
    """Look at a few of those that wait for the jobs that a verb has just ended. A canceled one ends others in turn:
    they join the same line, so a long chain costs no deep stack."""
    if (line := _queue.get()) is not None:
        line.extend(done.ended)
        return
    line, room = deque(done.ended), INLINE_LIMIT
    before = _queue.set(line)
    try:
        while line and room > 0:
            room -= propagate_completion(line.popleft(), limit=room)
    except Error as error:
        if is_database_unavailable(error):
            log.warning("dependents are left to the clock: %s", type(error).__name__)
        else:
            log.exception("looking at dependents failed; the clock tries again")
    finally:
        _queue.reset(before)


def propagate_completion(ended: EndedDependency, *, limit: int, failed: list[int] | None = None) -> int:
    """Look at up to `most` of those that wait for this job, and forget it after the last one. Returns how many.

    May be done twice, or by two at a time: `unblock` looks under the lock. One's trouble does not stop the others; it
    gets a row of its own, whose key is added to `failed`."""
    found = dependencies.dependents(ended, limit=limit + 1)
    looked = found[:limit]
    if trouble := _look_at(looked):
        again = EndedDependency.objects.create(root_job_ulid=ended.root_job_ulid, looked_to=min(trouble) - 1)
        if failed is not None:
            failed.append(again.pk)
    rows = EndedDependency.objects.filter(pk=ended.pk)
    if len(found) > limit:
        rows.update(looked_to=looked[-1][0])
    else:
        rows.delete()
    return len(looked)


def _look_at(jobs: Sequence[tuple[int, str]]) -> list[int]:
    """Returns the keys of those with which there was trouble. A whole page at once, for a transaction each would keep
    the clock from everything else; one by one where that fails."""
    try:
        if jobs:
            unblock(job_ulids=[job_ulid for _, job_ulid in jobs])
    except Exception as error:
        if is_connection_lost(error):
            raise
        if len(jobs) > 1:
            return [pk for job in jobs for pk in _look_at([job])]
        log.exception("unblock of %s failed; the next round tries again", jobs[0][1])
        return [jobs[0][0]]
    return []


def propagate_pending(*, limit: int) -> int:
    """The clock's part: look at up to `most` jobs that wait for one that has ended. Returns how many.

    A job that fails gets a new row for the next call; in this one it would be tried `most` times."""
    done, failed = 0, list[int]()
    while done < limit and (
        left := list(EndedDependency.objects.exclude(pk__in=failed).order_by("pk")[: limit - done])
    ):
        before = done
        for ended in left:
            done += propagate_completion(ended, limit=min(PAGE, limit - done), failed=failed) if done < limit else 0
        if done == before:
            break
    return done
