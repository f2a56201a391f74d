"""Limits how long a command waits: by `--timeout`, and for a server that does not answer meanwhile."""

import time
from collections.abc import Callable
from typing import Final

from orchestrator.cli.errors import CommandFailed, TimeUp

PATIENCE_SECONDS: Final = 60.0  # for a server that has answered before: it may be restarted meanwhile
FIRST_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 3.0


class Deadline:
    """The end of `--timeout`, or none."""

    def __init__(self, seconds: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Let the time begin now."""
        self._end = None if self._seconds is None else self._clock() + self._seconds

    def left(self, limit: float) -> float:
        """Return the seconds until the end, at most `limit`.

        Raises:
            TimeUp: The end has come.
        """
        if self._end is None:
            return limit
        left = self._end - self._clock()
        if left <= 0:
            raise TimeUp(f"The end has not come within {self._seconds:g} s.")
        return min(left, limit)


class Patience:
    """Waits between two questions, and for a server that does not answer, up to `PATIENCE_SECONDS`."""

    def __init__(
        self,
        deadline: Deadline,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline, self._pause, self._clock = deadline, pause, clock
        self._began = self._answered_at = clock()

    def answered(self) -> None:
        """Record that the server has answered."""
        self._answered_at = self._clock()

    def wait(self) -> None:
        """Wait before the next question, longer the more time has passed.

        Raises:
            TimeUp: The time of the command is up.
        """
        self._pause_after(self._clock() - self._began)

    def endure(self, error: CommandFailed) -> None:
        """Wait before the next try after an error.

        Raises:
            CommandFailed: `error`, if the server has not answered for too long.
            TimeUp: The time of the command is up.
        """
        silent = self._clock() - self._answered_at
        if silent >= PATIENCE_SECONDS:
            raise error
        self._pause_after(silent)

    def _pause_after(self, seconds: float) -> None:
        self._pause(self._deadline.left(min(max(seconds / 5, FIRST_PAUSE_SECONDS), MAX_PAUSE_SECONDS)))
