"""Lets an operator start a housekeeping task, such as one that has failed for good."""

from datetime import datetime

from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.housekeeping.queue import request_task
from runtime_jobs.events import Actor


@operation
def start_housekeeping_task(
    _: UnitOfWork,
    *,
    kind: str,
    subject: str,
    actor: Actor,
    reason: str,
    source_address: str | None = None,
    now: datetime | None = None,
) -> None:
    """Let a task be executed at once, and again if it is being executed.

    Args:
        kind: The kind of the task.
        subject: Its subject, or an empty text.
        actor: The operator.
        reason: Recorded in the audit log.
        source_address: The operator's IP address.
        now: The time of the request; by default the time of the database.
    """
    request_task(kind, subject, now=now)
    record_operator_event(
        "housekeeping.started",
        target=f"housekeeping:{kind} {subject}".strip()[:200],
        actor=actor,
        reason=reason,
        source_address=source_address,
        now=now,
    )
