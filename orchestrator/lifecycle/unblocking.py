"""What becomes of those that wait for a job that has ended: they are queued, or canceled, or wait on.

The end of a job only writes down that there are such jobs (`EndedDependency`, in its own transaction). After the commit
its process looks at a few of them, each in a transaction of its own; the clock at the rest, and at all of them where
that process died. So no verb grows with the number of dependents, and none waits for a lock of theirs."""

import logging
from collections import deque
from contextvars import ContextVar
from datetime import datetime

from django.db import Error

from orchestrator.lifecycle import dependencies, moves
from orchestrator.lifecycle.transaction import after_commit, verb
from orchestrator.lifecycle.writing import VerbEnding
from runtime_jobs.models import EndedDependency, Job
from runtime_jobs.states import JobState

log = logging.getLogger(__name__)

FEW = 8  # looked at before the caller has its answer; the clock does the rest

_line: ContextVar[deque[EndedDependency] | None] = ContextVar("line", default=None)


@verb
def unblock(*, job_ulid: str, now: datetime | None = None) -> Job | None:
    """Queue a blocked job when all that it depends on has succeeded; cancel it when one of those has finally failed.

    None, and nothing has changed, where it waits on or waits no more. How the others stand is read under this job's
    lock: of two that end at the same moment, the one that is looked after later sees both."""
    job, at = moves.lock_job(job_ulid, now=now)
    if job.state != JobState.BLOCKED:
        return None
    standing = dependencies.standing_of(dependencies.roots_for(job))
    if standing.failed is not None:
        moves.abandon(job, standing.failed, at=at)
    elif standing.is_met:
        moves.unblock(job, at=at)
    else:
        return None
    return moves.store(job, at)


@after_commit
def go_on(done: VerbEnding) -> None:
    """Look at a few of those that wait for the jobs that a verb has just ended. A canceled one ends others in turn:
    they join the same line, so a long chain costs no deep stack."""
    if (line := _line.get()) is not None:
        line.extend(done.ended)
        return
    line, room = deque(done.ended), FEW
    before = _line.set(line)
    try:
        while line and room > 0:
            room -= follow_up(line.popleft(), most=room)
    except Error:
        log.exception("looking at dependents failed; the clock tries again")
    finally:
        _line.reset(before)


def follow_up(ended: EndedDependency, *, most: int) -> int:
    """Look at up to `most` of those that wait for this job, and forget it after the last one. Returns how many.

    May be done twice, or by two at a time: `unblock` looks under the lock. One's trouble does not stop the others; it
    gets a line of its own."""
    found = dependencies.dependents(ended, most=most + 1)
    looked = found[:most]
    if trouble := [pk for pk, job_ulid in looked if not _looked_at(job_ulid)]:
        EndedDependency.objects.create(root_job_ulid=ended.root_job_ulid, looked_to=min(trouble) - 1)
    rows = EndedDependency.objects.filter(pk=ended.pk)
    if len(found) > most:
        rows.update(looked_to=looked[-1][0])
    else:
        rows.delete()
    return len(looked)


def _looked_at(job_ulid: str) -> bool:
    try:
        unblock(job_ulid=job_ulid)
    except Error:
        log.exception("unblock of %s failed; the next round tries again", job_ulid)
        return False
    return True


def follow_ends(*, most: int) -> int:
    """The clock's part: look at up to `most` jobs that wait for one that has ended. Returns how many."""
    done = 0
    while done < most and (left := list(EndedDependency.objects.order_by("pk")[: most - done])):
        before = done
        for ended in left:
            done += follow_up(ended, most=most - done) if done < most else 0
        if done == before:
            break
    return done
