"""Applies an operation to rows one at a time, so that one row that fails stops neither the others nor the round."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime_jobs.db_errors import is_connection_lost

log = logging.getLogger(__name__)

MAX_SUSPENDED = 10_000  # rows; beyond that the ones that are due soonest are tried again early
MAX_SUSPENSION_SECONDS = 60.0
# Of so many rows in one run at least one must succeed: else it is the process or the database that fails, not a row.
MIN_ROWS_OF_A_FAILED_RUN = 3


@dataclass
class Suspension:
    """A row that failed: how often in a row, and when it is tried again (seconds of the monotonic clock)."""

    failures: int
    until: float


class RowRunner:
    """Runs the rows of one task, and remembers across rounds which of them failed.

    A row that failed is suspended for 1, 2, 4 … 60 seconds. Queries that take only the first rows exclude what
    `suspended` returns. Otherwise one page of rows that fail every time would hide all others.
    """

    def __init__(
        self,
        task: str = "",
        *,
        before_each: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self.failed_rows = 0  # since the counter was last read by the scheduler
        self._before_each = before_each
        self._monotonic = monotonic
        self._suspensions: dict[Hashable, Suspension] = {}
        self._tried = self._succeeded = 0

    def begin(self) -> None:
        """Start a run of the task: forget how many rows the last one tried."""
        self._tried = self._succeeded = 0

    @property
    def has_failed(self) -> bool:
        """Whether this run tried several rows and none of them succeeded."""
        return self._tried >= MIN_ROWS_OF_A_FAILED_RUN and self._succeeded == 0

    @property
    def waits_for_failed_rows(self) -> bool:
        """Whether this run tried no row because those that are due have failed a short time ago."""
        now = self._monotonic()
        return self._tried == 0 and any(entry.until > now for entry in self._suspensions.values())

    def suspended(self, name: str) -> list[Any]:
        """Return the values of this argument of the rows that are not to be tried now."""
        now = self._monotonic()
        return [dict(key)[name] for key, entry in self._suspensions.items() if entry.until > now]  # type: ignore[call-overload]

    def each(self, operation: Callable[..., Any], rows: Iterable[Mapping[str, Any]], **common: Any) -> int:
        """Call the operation with the arguments of each row.

        Args:
            operation: Called with keyword arguments; each call is a transaction of its own.
            rows: The arguments of each call, hashable.
            common: Further arguments of every call.

        Returns:
            How many calls returned something else than None or False.

        Raises:
            Error: The connection is lost; no further row could succeed.
        """
        changed = 0
        for row in rows:
            key = tuple(row.items())
            suspension = self._suspensions.get(key)
            if suspension is not None and suspension.until > self._monotonic():
                continue
            self._before_each()
            self._tried += 1
            try:
                result = operation(**row, **common)
            except Exception as error:
                if is_connection_lost(error):
                    raise
                self._suspend(key)
                log.exception("%s of %s failed; it is tried again later", _name(operation), dict(row))
            else:
                self._succeeded += 1
                self._suspensions.pop(key, None)
                changed += result is not None and result is not False
        return changed

    def _suspend(self, key: Hashable) -> None:
        self.failed_rows += 1
        failures = self._suspensions[key].failures + 1 if key in self._suspensions else 1
        seconds = min(2.0 ** (failures - 1), MAX_SUSPENSION_SECONDS)
        if len(self._suspensions) >= MAX_SUSPENDED:
            del self._suspensions[min(self._suspensions, key=lambda other: self._suspensions[other].until)]
        self._suspensions[key] = Suspension(failures, self._monotonic() + seconds)


def _name(operation: Callable[..., Any]) -> str:
    return getattr(operation, "__name__", repr(operation))
