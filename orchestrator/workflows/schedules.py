"""Starts the runs of schedules, from the workflow files of the default branch."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from orchestrator.housekeeping.registry import task
from orchestrator.repositories.contents import default_ref, resolve_ref
from orchestrator.repositories.errors import PathNotFound, RepositoryError
from orchestrator.workflows import runs
from orchestrator.workflows.files import parse_file_at
from orchestrator.workflows.runs import WorkflowRunRequest
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError, QuotaContended
from runtime_jobs.events import SCHEDULER
from runtime_jobs.models import Repository, WorkflowEvent, WorkflowSchedule, WorkflowTrigger
from runtime_jobs.models.workflow_runs import MAX_TRIGGER_ID
from runtime_jobs.workflows.document import Workflow
from runtime_jobs.workflows.matching import TriggerEvent, is_triggered
from runtime_jobs.workflows.schedules import CronSchedule, ScheduleError

log = logging.getLogger(__name__)

SCHEDULE_TASK = "workflow_schedules"
PERIOD = timedelta(seconds=15)
PAGE = 100
MAX_DELAY = timedelta(hours=1)  # of a time whose run cannot be started, such as when git fails


def store_schedules(
    repository: Repository,
    workflows: Mapping[str, Workflow],
    *,
    push: WorkflowTrigger | None = None,
    now: datetime | None = None,
) -> None:
    """Make the stored schedules of a repository equal to those of its workflow files. A schedule that stays is kept.

    Args:
        repository: The repository.
        workflows: The workflow files of the default branch by path.
        push: The push that brought the files. Nothing is stored if a later push to its branch was received: the
            processing of the later one may have ended already.
        now: The present, after which new schedules fire; by default the time of the database.
    """
    wanted = {
        (path, schedule.source): schedule for path, file in workflows.items() for schedule in file.triggers.schedules
    }
    with transaction.atomic():
        Repository.objects.select_for_update(no_key=True).get(pk=repository.pk)
        if push is not None and _has_later_push(push):
            return
        stored = {(row.workflow_file, row.cron): row for row in WorkflowSchedule.objects.filter(repository=repository)}
        gone = [row.pk for key, row in stored.items() if key not in wanted]
        WorkflowSchedule.objects.filter(pk__in=gone).delete()
        present = now or database_now()
        for (path, cron), schedule in wanted.items():
            next_at = schedule.next_after(present)
            if (path, cron) not in stored and next_at is not None:
                WorkflowSchedule.objects.create(repository=repository, workflow_file=path, cron=cron, next_at=next_at)


def _has_later_push(push: WorkflowTrigger) -> bool:
    later = WorkflowTrigger.objects.filter(repository=push.repository_id, event=WorkflowEvent.PUSH, pk__gt=push.pk)
    return later.filter(facts__ref=push.facts["ref"]).exists()


@task(SCHEDULE_TASK, every=lambda: PERIOD, is_standing=True)
def start_due_schedules(_subject: str) -> None:
    """Start the runs of all schedules that are due."""
    fire_schedules()


def fire_schedules(*, now: datetime | None = None) -> int:
    """Start the runs of the schedules that are due, and return their number.

    Of several times that have passed meanwhile, such as while no process was running, only the first one fires. Two
    processes start one run: the trigger id contains the time. A schedule that fails stops no other one. Its time is
    tried again for `MAX_DELAY`.

    Args:
        now: The present; by default the time of the database.
    """
    present = now or database_now()
    number = 0
    for row in _due_rows(present):
        number += 1
        try:
            _fire(row, present)
        except Exception as error:
            if is_connection_lost(error):
                raise
            is_known = isinstance(error, RepositoryError | LifecycleError)
            message = "the schedule of %s in %s failed; it is tried again: %s"
            log.warning(message, row.workflow_file, row.repository, error, exc_info=not is_known)
    return number


def _due_rows(present: datetime) -> Iterator[WorkflowSchedule]:
    """Yield the schedules that are due, each once: those that fail stay due, and must not hide the others."""
    due = WorkflowSchedule.objects.select_related("repository").filter(next_at__lte=present).order_by("pk")
    page = list(due[:PAGE])
    while page:
        yield from page
        page = list(due.filter(pk__gt=page[-1].pk)[:PAGE])


def _fire(row: WorkflowSchedule, present: datetime) -> None:
    """Start the run of a schedule that is due, and store its next time.

    Raises:
        Exception: The run cannot be started now. The time is kept, because it is younger than `MAX_DELAY`.
    """
    try:
        _start(row)
    except Exception as error:
        is_refusal = isinstance(error, LifecycleError) and not isinstance(error, QuotaContended)
        if is_connection_lost(error) or (not is_refusal and present - row.next_at < MAX_DELAY):
            raise
        is_known = isinstance(error, RepositoryError | LifecycleError)
        message = "the schedule of %s in %s is left out: %s"
        log.warning(message, row.workflow_file, row.repository, error, exc_info=not is_known)
    try:
        next_at = CronSchedule.parse(row.cron).next_after(present)
    except ScheduleError:  # it was stored when such a step was still accepted
        next_at = None
    following = WorkflowSchedule.objects.filter(pk=row.pk, next_at=row.next_at)
    if next_at is None:
        following.delete()
    else:
        following.update(next_at=next_at)


def _start(row: WorkflowSchedule) -> None:
    """Start the run of a schedule.

    Raises:
        RepositoryError: The mirror cannot be read.
        LifecycleError: The run is refused.
    """
    repository = row.repository
    ref = default_ref(repository)
    commit = resolve_ref(repository, ref)
    try:
        workflow = parse_file_at(repository, commit, row.workflow_file).workflow
    except PathNotFound:
        workflow = None
    if workflow is None or not is_triggered(workflow.triggers, TriggerEvent("schedule", cron=row.cron)):
        return  # the file has changed since; the push of that change stores the schedules
    request = WorkflowRunRequest(
        repository_id=repository.pk,
        workflow_file=row.workflow_file,
        workflow=workflow,
        head_sha=commit,
        head_ref=ref,
        event=WorkflowEvent.SCHEDULE,
        event_payload={},
        trigger_id=_trigger_id(row),
        actor_name="schedule",
        correlation_id=f"schedule-{row.pk}",
    )
    runs.start_workflow_run(request, default_pool=settings.DEFAULT_POOL, actor=SCHEDULER)


def _trigger_id(row: WorkflowSchedule) -> str:
    """Return the id of a time of a schedule. It names the expression by its digest if both do not fit."""
    cron, time = row.cron, f"{row.next_at:%Y-%m-%dT%H:%MZ}"
    if len(f"schedule:{cron}:{time}") > MAX_TRIGGER_ID:
        cron = hashlib.sha256(cron.encode()).hexdigest()
    return f"schedule:{cron}:{time}"
