"""The cause of an operation."""

from dataclasses import dataclass, replace
from datetime import datetime

from runtime_jobs.events import Actor


@dataclass(frozen=True)
class Cause:
    """Names who asks for an operation, why, from where and when. The caller, a view or a loop, makes one.

    Attributes:
        actor: The person or program.
        reason: The reason that the actor gave, for the audit log.
        source_address: The IP address of the caller, or None.
        now: The time of the operation. None: the time of the database, read after the locks.
    """

    actor: Actor
    reason: str = ""
    source_address: str | None = None
    now: datetime | None = None

    def at(self, now: datetime) -> "Cause":
        """Return the same cause with the time that the operation has read."""
        return replace(self, now=now)
