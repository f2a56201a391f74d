"""What the server's answers mean to a worker. No text of these errors ever holds a lease id, a token or a URL path."""

from __future__ import annotations


class AgentError(Exception):
    """Everything that the agent raises on purpose."""


class WorkerStartError(AgentError):
    """This worker may not start or go on claiming; `str()` says in one line why and what would help."""


class WorkerCrashed(AgentError):
    """A critical thread of this worker failed; the process must end with a non-zero exit code."""


class ProtocolError(AgentError):
    """The other side sent something that is not what its contract says."""


class RequestRejected(AgentError):
    """The server understood and refused: the same again changes nothing. `code` is stable, `status` is HTTP's."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}" if detail else f"{status} {code}")
        self.status = status
        self.code = code


class LeaseRejected(RequestRejected):
    """The lease no longer speaks for its job: stop, free everything, say no more. `reason` says why it ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(409, "stale_lease", reason)
        self.reason = reason


class ServerConflict(RequestRejected):
    """The job or the message before this one stands against it. `facts` are the further members of the problem."""

    def __init__(self, code: str, detail: str, facts: dict[str, object]) -> None:
        super().__init__(409, code, detail)
        self.facts = facts


class RequestRefused(RequestRejected):
    """Any other refusal: a right that is missing, an invalid message, a path that does not exist."""


class ServerUnreachable(AgentError):
    """No answer that counts: network trouble, 429, 5xx, garbage. `retry_after`: how long the server asked to wait."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after
