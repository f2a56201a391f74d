"""The native API as a worker speaks it: one method a call, one try each, problem documents turned into typed errors.

Every call here may be repeated: a claim by its Idempotency-Key, a chunk by its number, a final message by its content.
"""

from __future__ import annotations

import base64
import email.utils
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.agent import wire
from workers.agent.credentials import Token
from workers.agent.errors import Conflict, Malformed, Refused, StaleLease, Unreachable
from workers.agent.failpoints import failpoint
from workers.agent.transport import Answer, Patience, Transport
from workers.agent.wire import Lease
from workers.agent.words import one_line

LEASES = "/v1/runtime/leases"
BUSY = frozenset({408, 425, 429})  # the same request may succeed later


@dataclass(frozen=True)
class Beat:
    """The answer to a heartbeat. `cancel_deadline_seconds`: how long until the server cancels without us."""

    cancel_requested: bool = False
    cancel_reason: str | None = None
    cancel_deadline_seconds: float | None = None


@dataclass(frozen=True)
class Offer:
    """What this worker claims with."""

    worker_id: str
    pool: str
    capabilities: dict[str, bool]

    def body(self, wait_seconds: float) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "pool": self.pool,
            "capabilities": self.capabilities,
            "job_types": list(wire.JOB_TYPES),
            "wait_seconds": wait_seconds,
            "acknowledge": True,
        }


class Client:
    """All calls raise Unreachable (try again), StaleLease, Conflict or Refused (do not)."""

    def __init__(self, server: str, token: Token, session: str) -> None:
        headers = {"Worker-Session": session, "User-Agent": "runtime-orchestrator-worker"}
        self._transport = Transport(server, token.current, headers)
        self._token = token
        self._patience = Patience(connect=5, read=15, total=20)

    @property
    def server(self) -> str:
        return self._transport.origin

    def close(self) -> None:
        self._transport.close()

    def claim(self, offer: Offer, *, wait_seconds: float, key: str) -> Lease | None:
        """Ask for one job, waiting for it at the server. None: there is none. Raises Malformed, too."""
        patience = Patience(connect=5, read=wait_seconds + 15, total=wait_seconds + 20)
        body = self._post(LEASES, offer.body(wait_seconds), patience, {"Idempotency-Key": key}, _claim_sent)
        if body is None:
            return None
        try:
            return wire.lease(body)
        except Malformed as odd:
            self._decline(body.get("lease_id"), f"this worker does not understand the job's {odd}")
            raise

    def _decline(self, lease_id: Any, message: str) -> None:
        """Give back what cannot even be read, so that another worker gets it at once."""
        if isinstance(lease_id, str) and wire.IDENTIFIER.fullmatch(lease_id):
            self._post(f"{LEASES}/{lease_id}/release", {"message": message, "unable": True}, self._patience)

    def acknowledge(self, lease: Lease) -> None:
        self._speak(lease, "acknowledge", {})

    def heartbeat(self, lease: Lease, progress: dict[str, Any], *, within: float) -> Beat:
        """Renew the lease, hearing whether to cancel; gives up `within` so many seconds."""
        body = self._speak(lease, "heartbeat", progress, self._patience.within(within))
        return _beat(body)

    def report(self, lease: Lease, phase: str) -> None:
        self._speak(lease, "report", {"phase": phase})

    def log(self, lease: Lease, seq: int, chunk: bytes, *, step: int = 0) -> None:
        self._speak(lease, "logs", {"step": step, "seq": seq, "chunk": base64.b64encode(chunk).decode()})

    def complete(self, lease: Lease, result: dict[str, Any]) -> None:
        self._speak(lease, "complete", {"result": {"status": "uploaded", **result}})

    def fail(self, lease: Lease, result: dict[str, Any]) -> None:
        self._speak(lease, "fail", {"result": {"status": "failed", **result}})

    def acknowledge_cancel(self, lease: Lease, message: str) -> None:
        self._speak(lease, "acknowledge-cancel", {"message": message})

    def release(self, lease: Lease, message: str, *, unable: bool) -> None:
        """Give the job back unexecuted. `unable`: not to this worker again, the machine is too weak for it."""
        self._speak(lease, "release", {"message": message, "unable": unable})

    def _speak(self, lease: Lease, verb: str, body: dict[str, Any], patience: Patience | None = None) -> dict[str, Any]:
        return self._post(f"{LEASES}/{lease.lease_id}/{verb}", body, patience or self._patience) or {}

    def _post(
        self,
        path: str,
        body: dict[str, Any],
        patience: Patience,
        headers: dict[str, str] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> dict[str, Any] | None:
        answer = self._transport.post(path, encoded(body), patience=patience, headers=headers, on_sent=on_sent)
        if answer.status == 401:
            self._token.refused()
        return _understood(answer)


def _claim_sent() -> None:
    failpoint("worker.claim.sent")


def encoded(body: dict[str, Any]) -> bytes:
    """Return `body` as it is sent."""
    return json.dumps(body, separators=(",", ":")).encode()


def retry_after(answer: Answer) -> float | None:
    """Read Retry-After, as seconds or as a date, or None if it is absent or nonsense."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _understood(answer: Answer) -> dict[str, Any] | None:
    if answer.status in {200, 201}:
        return _document(answer)
    if answer.status == 204:
        return None
    if answer.status in BUSY or answer.status >= 500:
        raise Unreachable(f"the server answered {answer.status}", retry_after(answer))
    raise _refusal(answer)


def _document(answer: Answer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    if answer.oversize or not isinstance(body, dict):
        # Something between us and the server answered in its place: as good as no answer.
        raise Unreachable(f"the server answered {answer.status} without a JSON object")
    return body


def _refusal(answer: Answer) -> StaleLease | Conflict | Refused:
    try:
        problem = _document(answer)
    except Unreachable:
        problem = {}
    code, detail = one_line(problem.get("code", "unknown"), 64), one_line(problem.get("detail", ""), 300)
    if answer.status == 409 and code == "stale_lease":
        return StaleLease(one_line(problem.get("reason", "unknown"), 64))
    if answer.status == 409:
        return Conflict(code, detail, problem)
    return Refused(answer.status, code, detail)


def _beat(body: dict[str, Any]) -> Beat:
    deadline = body.get("cancel_deadline_seconds")
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise Malformed("cancel_deadline_seconds")
    reason = body.get("cancel_reason")
    return Beat(body.get("cancel_requested") is True, one_line(reason, 200) if reason else None, deadline)
