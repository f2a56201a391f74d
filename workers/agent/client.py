"""The native API as a worker speaks it: one method a call, one try each, problem documents turned into typed errors.

Every call here may be repeated: a claim by its Idempotency-Key, a chunk by its number, a final message by its content.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.agent import wire
from workers.agent.credentials import Token
from workers.agent.errors import Answered, Conflict, Malformed, Refused, StaleLease, Unreachable
from workers.agent.failpoints import failpoint
from workers.agent.transport import ANSWER_BYTES, Answer, Patience, Transport
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

    def body(self, wait_seconds: float, most: int) -> dict[str, Any]:
        many = {} if most == 1 else {"max_leases": most}
        return many | {
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

    def claim(self, offer: Offer, *, wait_seconds: float, key: str, most: int = 1) -> list[Lease]:
        """Ask for up to `most` jobs, waiting at the server until there is one. Raises Malformed, too, where none of
        those that came can be read."""
        patience = Patience(connect=5, read=wait_seconds + 15, total=wait_seconds + 20)
        asked = offer.body(wait_seconds, most)
        headers = {"Idempotency-Key": key}
        body = self._post(LEASES, asked, patience, headers, on_sent=_claim_sent, limit=most * ANSWER_BYTES)
        if body is None:
            return []
        sent = body.get("leases", [body])
        if not isinstance(sent, list) or not sent:
            raise Malformed("leases")
        return self._readable(sent)

    def _readable(self, sent: list[Any]) -> list[Lease]:
        """What cannot be read costs nobody but itself."""
        leases, odd = [], []
        for one in sent:
            try:
                leases.append(wire.lease(one))
            except Malformed as what:
                odd.append((one, what))
        for one, why in odd:
            # Beside jobs that can be run, one that cannot be given back is left to its window.
            with contextlib.suppress(*(Unreachable, Answered) if leases else ()):
                self._decline(one, f"this worker does not understand the job's {why}")
        if odd and not leases:
            raise odd[0][1]
        return leases

    def _decline(self, sent: Any, message: str) -> None:
        """Give back what cannot even be read, so that another worker gets it at once."""
        lease_id = sent.get("lease_id") if isinstance(sent, dict) else None
        if isinstance(lease_id, str) and wire.IDENTIFIER.fullmatch(lease_id):
            self._post(f"{LEASES}/{lease_id}/release", {"message": message, "unable": True}, self._patience)

    def acknowledge(self, lease: Lease) -> None:
        self._speak(lease, "acknowledge", {})

    def heartbeat(self, lease: Lease, progress: dict[str, Any], *, within: float) -> Beat:
        """Renew the lease, hearing whether to cancel; gives up `within` so many seconds."""
        body = self._speak(lease, "heartbeat", progress, self._patience.within(within))
        return _beat(body)

    def heartbeat_many(
        self, told: Sequence[tuple[Lease, dict[str, Any]]], *, within: float
    ) -> list[Beat | StaleLease | Conflict | Refused | Unreachable | Malformed]:
        """The same for many leases in one call: for each the answer, or what the call for one would have raised."""
        body = {"leases": [{"lease_id": lease.lease_id, **progress} for lease, progress in told]}
        answer = self._post(f"{LEASES}/heartbeat", body, self._patience.within(within)) or {}
        results = answer.get("results")
        if not isinstance(results, list) or len(results) != len(told):
            raise Malformed("results")
        return [_beat_among(result, lease) for result, (lease, _) in zip(results, told, strict=True)]

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
        *,
        on_sent: Callable[[], None] | None = None,
        limit: int = ANSWER_BYTES,
    ) -> dict[str, Any] | None:
        answer = self._transport.post(
            path, encoded(body), patience=patience, headers=headers, on_sent=on_sent, limit=limit
        )
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
    return _refused(answer.status, problem)


def _refused(status: int, problem: dict[str, Any]) -> StaleLease | Conflict | Refused:
    code, detail = one_line(problem.get("code", "unknown"), 64), one_line(problem.get("detail", ""), 300)
    if status == 409 and code == "stale_lease":
        return StaleLease(one_line(problem.get("reason", "unknown"), 64))
    if status == 409:
        return Conflict(code, detail, problem)
    return Refused(status, code, detail)


def _beat_among(result: Any, lease: Lease) -> Beat | StaleLease | Conflict | Refused | Unreachable | Malformed:
    """One of the results of a call for many, which must be this lease's."""
    if not isinstance(result, dict) or result.get("lease_id") != lease.lease_id:
        return Malformed("lease_id")
    status, error = result.get("status"), result.get("error")
    try:
        if status == 200 and isinstance(result.get("body"), dict):
            return _beat(result["body"])
    except Malformed as odd:
        return odd
    if type(status) is not int or not isinstance(error, dict):
        return Malformed("results")
    if status in BUSY or status >= 500:
        return Unreachable(f"the server answered {status}")
    return _refused(status, error)


def _beat(body: dict[str, Any]) -> Beat:
    deadline = body.get("cancel_deadline_seconds")
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise Malformed("cancel_deadline_seconds")
    reason = body.get("cancel_reason")
    return Beat(body.get("cancel_requested") is True, one_line(reason, 200) if reason else None, deadline)
