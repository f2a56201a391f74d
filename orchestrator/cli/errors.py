"""Exit codes of the command line, and the errors that end it. The numbers are those of `sysexits.h` and `timeout`."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final


class ExitCode(IntEnum):
    """Exit codes beside that of a job. `docs/cli.md` has the same table."""

    OK = 0
    FAILED = 1  # a job without an exit code of its own failed; a bundle or a replay is not proven
    USAGE = 64
    NOT_FOUND = 66
    UNAVAILABLE = 69
    CANNOT_WRITE = 73
    REFUSED = 77
    TIME_UP = 124
    INTERRUPTED = 130  # by Ctrl-C; also of a canceled job
    OUTPUT_CLOSED = 141


# Statuses that say: the request itself is wrong, whoever sends it and whenever.
_WRONG_REQUEST: Final = frozenset({400, 405, 406, 411, 413, 414, 415, 422, 431})
REQUEST_TIMEOUT: Final = 408


class CommandFailed(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, exit_code: int, message: str, *, code: str) -> None:
        super().__init__(message)
        self.exit_code, self.message, self.code = exit_code, message, code

    def document(self) -> dict[str, Any]:
        """Return the error for `-o json`."""
        return {"code": self.code, "detail": self.message, "exitCode": int(self.exit_code)}


class UsageError(CommandFailed):
    """The command line or a file that it names is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USAGE, message, code="usage")


class ServerUnavailable(CommandFailed):
    """The server cannot be reached, or cannot answer at present."""

    def __init__(self, message: str, *, code: str = "unavailable") -> None:
        super().__init__(ExitCode.UNAVAILABLE, message, code=code)


class TimeUp(CommandFailed):
    """The time of `--timeout` has passed."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.TIME_UP, message, code="timeout")


class ApiRefusal(CommandFailed):
    """The server has answered with a problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
        super().__init__(exit_code_of(status), detail, code=str(problem.get("code") or f"http_{status}"))
        self.status, self.problem = status, dict(problem)

    def document(self) -> dict[str, Any]:
        return self.problem | super().document()


def exit_code_of(status: int) -> ExitCode:
    """Return the exit code for the HTTP status of a refused request."""
    if status == 404:
        return ExitCode.NOT_FOUND
    if status >= 500 or status == REQUEST_TIMEOUT:
        return ExitCode.UNAVAILABLE
    return ExitCode.USAGE if status in _WRONG_REQUEST else ExitCode.REFUSED
