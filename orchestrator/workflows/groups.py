"""Reads which runs of a concurrency group are open, and which one is next."""

from django.db.models import Exists, OuterRef, QuerySet

from runtime_jobs.models import Job, RunHold, WorkflowRun
from runtime_jobs.states import FINAL_STATES


def open_runs_of_group(run: WorkflowRun) -> QuerySet[WorkflowRun]:
    """Return the other runs of the run's group that have not ended, oldest first."""
    runs = WorkflowRun.objects.filter(
        repository_id=run.repository_id, concurrency_group=run.concurrency_group, conclusion=None
    )
    return runs.exclude(pk=run.pk).order_by("pk")


def has_older_run(run: WorkflowRun) -> bool:
    """Return whether a run must wait: another one of its group may execute jobs, or waits for longer.

    Args:
        run: A run that takes its place in the group now. All others that have one are before it.
    """
    others = open_runs_of_group(run).exclude(hold=RunHold.APPROVAL)
    return others.filter(_has_blocking_jobs()).exists()


def next_run_of_group(run: WorkflowRun) -> WorkflowRun | None:
    """Return the run of the group that may execute its jobs now, or None.

    Args:
        run: Any run of the group.
    """
    runs = WorkflowRun.objects.filter(
        _has_blocking_jobs(),
        repository_id=run.repository_id,
        concurrency_group=run.concurrency_group,
        conclusion=None,
    )
    if runs.filter(hold="").exists():
        return None
    return runs.filter(hold=RunHold.CONCURRENCY).order_by("pk").first()


def next_runs_of_groups() -> QuerySet[WorkflowRun]:
    """Return the waiting run of each group that may execute its jobs now, as `next_run_of_group` does for one group."""
    runs = WorkflowRun.objects.filter(_has_blocking_jobs(), conclusion=None)
    group = ("repository_id", "concurrency_group")
    oldest = runs.filter(hold=RunHold.CONCURRENCY).order_by(*group, "pk").distinct(*group)
    active = runs.filter(hold="", **{name: OuterRef(name) for name in group})
    return WorkflowRun.objects.filter(~Exists(active), pk__in=oldest.values("pk"))


def _has_blocking_jobs() -> Exists:
    open_jobs = Job.objects.filter(batch_id=OuterRef("batch_id"), cancel_requested_at=None)
    return Exists(open_jobs.exclude(state__in=FINAL_STATES))
