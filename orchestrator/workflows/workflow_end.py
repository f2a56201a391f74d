"""Records the end of workflow runs, and lets the next run of a concurrency group begin.

The transaction that ends a job does not wait for other jobs of its run. After the commit, the same process records what
follows, in another transaction. Housekeeping does so if that process died.
"""

import logging
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import Error
from django.db.models import Exists, OuterRef, QuerySet

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.dependency_propagation import unblock_locked
from orchestrator.workflows.groups import next_run_of_group, next_runs_of_groups
from orchestrator.workflows.runs import lock_repository
from runtime_jobs.db_errors import is_database_unavailable
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, WorkflowRun
from runtime_jobs.rollup import roll_up
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.readiness import job_ends
from runtime_jobs.states import FINAL_STATES, JobState

log = logging.getLogger(__name__)

INLINE_LIMIT = 16  # runs that are settled before the caller has its response


def settle_run_of(*, uow: UnitOfWork, job: Job, **_: Any) -> None:
    """Settle the run of a workflow job after the commit (`job_ended`, `cancel_requested`).

    The run may have ended, and another one may begin: a job that is being canceled does not keep other runs waiting.
    """
    # The type first: calls about many leases do not read the batch.
    if JOB_TYPES[job.job_type].in_workflow_runs and job.batch_id is not None:
        uow.after_commit(settle_batches, job.batch_id)


def settle_batches(batch_ids: Sequence[int]) -> None:
    """Settle the runs of these batches, and those that this lets end, after a commit. Never raises."""
    queue = deque(dict.fromkeys(batch_ids))
    try:
        for _ in range(INLINE_LIMIT):
            if not queue:
                return
            queue.extend(settle_run(batch_id=queue.popleft()))
    except Error as error:
        if is_database_unavailable(error):
            log.debug("workflow runs are left to housekeeping: %s", type(error).__name__)
        else:
            log.exception("a workflow run could not be settled; housekeeping repeats this")


@operation
def settle_run(uow: UnitOfWork, *, batch_id: int, now: datetime | None = None) -> list[int]:
    """Record the conclusion of a run whose jobs have all ended, and release the next run of its group.

    A repetition changes nothing.

    Args:
        batch_id: The key of the run's batch. A batch without a run is left alone.

    Returns:
        The keys of batches of which jobs have ended here, because their condition is false.
    """
    repository_id = WorkflowRun.objects.filter(batch_id=batch_id).values_list("repository_id", flat=True).first()
    if repository_id is None:
        return []
    lock_repository(repository_id)
    run = WorkflowRun.objects.get(batch_id=batch_id)
    settled_at = now or database_now()
    if run.conclusion is None:
        _record_end(run, settled_at)
    if run.concurrency_group:
        _release_next(uow, run, settled_at)
    return uow.take_after_commit(settle_batches)


def _record_end(run: WorkflowRun, now: datetime) -> None:
    ends = job_ends(run)
    run.conclusion = roll_up([end.conclusion for end in ends.values()])
    if run.conclusion is not None:
        run.completed_at, run.hold = now, ""
        run.save(update_fields=["conclusion", "completed_at", "hold"])


def _release_next(uow: UnitOfWork, run: WorkflowRun, now: datetime) -> None:
    waiting = next_run_of_group(run)
    if waiting is not None:
        release_run(uow, waiting, now=now)


def release_run(uow: UnitOfWork, run: WorkflowRun, *, now: datetime) -> None:
    """Let the jobs of a held run be queued or skipped. The caller has locked the repository.

    The lock of a run comes after those of its jobs.
    """
    blocked = list(Job.objects.locked().filter(batch_id=run.batch_id, state=JobState.BLOCKED).order_by("pk"))
    run.hold = ""
    run.save(update_fields=["hold"])
    unblock_locked(uow, blocked, now=now)


def settle_pending_runs(*, limit: int) -> int:
    """Settle runs whose processes died before they could. Housekeeping calls this regularly.

    Args:
        limit: The maximum number of ended runs, and of concurrency groups whose next run is released.

    Returns:
        The number of runs that were found.
    """
    open_jobs = Job.objects.filter(batch_id=OuterRef("batch_id")).exclude(state__in=FINAL_STATES)
    ended = WorkflowRun.objects.filter(~Exists(open_jobs), conclusion=None)
    # Not one query for both: runs that wait for an older one of their group are many, and hid ended runs behind them.
    return sum(_settle_all(runs, limit) for runs in (ended, next_runs_of_groups()))


def _settle_all(runs: QuerySet[WorkflowRun], limit: int) -> int:
    found = list(runs.order_by("pk").values_list("batch_id", flat=True)[:limit])
    for batch_id in found:  # one by one: the failure of one does not keep the others from it
        settle_batches([batch_id])
    return len(found)
