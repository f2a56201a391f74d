"""The errors of the worker. Their texts never hold a lease id, a token or a URL path."""

from __future__ import annotations

UNKNOWN_CODE = "unknown"  # of a response that is no problem document of the server
_FINAL_STATUSES = frozenset({400, 409, 413, 422})


class AgentError(Exception):
    """The base class of all errors that the worker raises on purpose."""


class WorkerStartError(AgentError):
    """This worker may not start or continue to claim; `str()` says in one line why, and what to do."""


class WorkerCrashed(AgentError):
    """A critical thread of this worker failed; the process must end with a non-zero exit code."""


class ProtocolError(AgentError):
    """The other side sent a message that its contract does not allow."""


class RequestRejected(AgentError):
    """The server refused a request, and would refuse it again. `code` is stable, `status` is the HTTP status."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}" if detail else f"{status} {code}")
        self.status = status
        self.code = code

    @property
    def is_final(self) -> bool:
        """Report whether the server has read the message and will never accept it, whatever the worker's token."""
        return self.status in _FINAL_STATUSES and self.code != UNKNOWN_CODE


class LeaseRejected(RequestRejected):
    """The lease is no longer valid: stop the job and send no more messages. `reason` says why it ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(409, "stale_lease", reason)
        self.reason = reason


class ServerConflict(RequestRejected):
    """The request conflicts with the job's state or an earlier message. `facts`: further members of the problem."""

    def __init__(self, code: str, detail: str, facts: dict[str, object]) -> None:
        super().__init__(409, code, detail)
        self.facts = facts


class RequestRefused(RequestRejected):
    """Any other refusal: a missing permission, an invalid message, a path that does not exist."""


class TransientRefusal(RequestRefused):
    """The same request may succeed later: the token may be rotated, or a proxy answered in place of the server."""

    retry_after: float | None = None


class ServerUnreachable(AgentError):
    """No valid response: network error, 429, 5xx, garbage. `retry_after`: the wait that the server requested."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
