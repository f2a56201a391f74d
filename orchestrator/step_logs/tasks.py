"""Housekeeping of logs: moves them into objects, and deletes objects that no log names."""

from datetime import timedelta
from typing import Final

from orchestrator.housekeeping.queue import create_missing
from orchestrator.housekeeping.registry import SubjectGone, task
from orchestrator.step_logs.finalizing import finalize_log, logs_to_finalize
from orchestrator.step_logs.objects import remove_object
from orchestrator.step_logs.step_log_writes import FINALIZE
from runtime_jobs.db_time import database_now
from runtime_jobs.models import DiscardedLogObject, StepLog

SCAN_PERIOD: Final = timedelta(seconds=30)
DELETE_PERIOD: Final = timedelta(minutes=10)
# A reader that has found the name of an object reads it for as long, and an interrupted attempt may still write it.
DISCARD_DELAY: Final = timedelta(hours=2)
OBJECTS_PER_PASS: Final = 1000


@task(FINALIZE)
def finalize(subject: str) -> None:
    """Put one log into an object."""
    key = int(subject)
    if not finalize_log(key) and not StepLog.objects.filter(pk=key).exists():
        raise SubjectGone(f"log {key}")


@task("finalize_ended_logs", every=lambda: SCAN_PERIOD, is_standing=True)
def request_missing(_: str) -> None:
    """Request what no end of a step has requested: logs of jobs without steps, and requests that were lost.

    A log whose task has failed waits for the next attempt of that task.
    """
    create_missing(FINALIZE, [str(key) for key in logs_to_finalize()])


@task("delete_discarded_log_objects", every=lambda: DELETE_PERIOD, is_standing=True)
def delete_discarded(_: str) -> None:
    """Delete objects that no log names any more."""
    before = database_now() - DISCARD_DELAY
    names = DiscardedLogObject.objects.filter(discarded_at__lt=before).order_by("discarded_at")
    for name in list(names.values_list("name", flat=True)[:OBJECTS_PER_PASS]):
        if not StepLog.objects.filter(object_key=name).exists():
            remove_object(name)
        DiscardedLogObject.objects.filter(pk=name).delete()
