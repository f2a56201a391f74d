"""Lets an operator start a housekeeping task, such as one that has failed for good."""

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.housekeeping.queue import request_task


@operation
def start_housekeeping_task(
    _: UnitOfWork,
    *,
    kind: str,
    subject: str,
    cause: Cause,
) -> None:
    """Let a task be executed at once, and again if it is being executed.

    Args:
        kind: The kind of the task.
        subject: Its subject, or an empty text.
    """
    request_task(kind, subject, now=cause.now)
    record_operator_event(
        "housekeeping.started",
        target=f"housekeeping:{kind} {subject}".strip()[:200],
        cause=cause,
    )
