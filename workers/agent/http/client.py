"""The native API for a worker: one method per call, one attempt each, problem documents as typed errors.

Every call may be repeated: a claim by its Idempotency-Key, a chunk by its number, a final message by its content.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.agent.credentials import TokenFile
from workers.agent.errors import (
    UNKNOWN_CODE,
    LeaseRejected,
    ProtocolError,
    RequestRefused,
    RequestRejected,
    ServerConflict,
    ServerUnreachable,
    TransientRefusal,
)
from workers.agent.failpoints import failpoint
from workers.agent.http import wire
from workers.agent.http.transport import ANSWER_BYTES, HttpResponseData, Timeouts, Transport
from workers.agent.http.wire import CacheDownload, LeasePayload
from workers.agent.sanitize import one_line

logger = logging.getLogger(__name__)

LEASES = "/v1/runtime/leases"
UNREADY = "/v1/runtime/workers/unready"
BUSY = frozenset({408, 425, 429})  # the same request may succeed later
_OF_PROXIES = frozenset({403, 404, 407, *range(300, 400)})  # proxies and their log-in pages answer so, too
ORDER_BYTES = 16 << 20  # of a step: 200 secrets have 48 KiB each
ARTIFACT_QUOTA = "artifact_quota"  # 429 as well, but the job has all artifacts that it may have


@dataclass(frozen=True)
class HeartbeatResponse:
    """The response to a heartbeat. `cancel_deadline_seconds`: how long until the server cancels by itself."""

    cancel_requested: bool = False
    cancel_reason: str | None = None
    cancel_deadline_seconds: float | None = None


@dataclass(frozen=True)
class ClaimOffer:
    """The worker, its pool and its capabilities, as sent with a claim."""

    worker_id: str
    pool: str
    capabilities: dict[str, bool]
    job_types: tuple[str, ...] = wire.JOB_TYPES

    def body(self, wait_seconds: float, max_leases: int) -> dict[str, Any]:
        many = {} if max_leases == 1 else {"max_leases": max_leases}
        return many | self.next_body() | {"wait_seconds": wait_seconds}

    def next_body(self) -> dict[str, Any]:
        """Return the claim of one lease that goes with a final message and does not wait."""
        return {
            "worker_id": self.worker_id,
            "pool": self.pool,
            "capabilities": self.capabilities,
            "job_types": list(self.job_types),
            "acknowledge": True,
        }


class OrchestratorClient:
    """The client.

    All calls raise ServerUnreachable, TransientRefusal (retry), or LeaseRejected, ServerConflict, another
    RequestRefused (do not retry).
    """

    def __init__(self, server: str, token: TokenFile, session: str) -> None:
        headers = {"Worker-Session": session, "User-Agent": "runtime-orchestrator-worker"}
        self._transport = Transport(server, token.current, headers)
        self._token = token
        self._timeouts = Timeouts(connect=5, read=15, total=20)
        self._uploads = Timeouts(connect=5, read=30, total=60)
        self._claims_next = True  # until a server turns out not to know `claim_next`

    @property
    def server(self) -> str:
        return self._transport.origin

    @property
    def transport(self) -> Transport:
        """The connections to the server, for other paths than those of the native API."""
        return self._transport

    def close(self) -> None:
        self._transport.close()

    def claim(self, offer: ClaimOffer, *, wait_seconds: float, key: str, max_leases: int = 1) -> list[LeasePayload]:
        """Claim jobs; the server waits until there is one.

        Args:
            offer: What the worker offers.
            wait_seconds: How long the server may wait.
            key: The Idempotency-Key.
            max_leases: How many jobs at most.

        Raises:
            ProtocolError: None of the leases can be parsed.
        """
        timeouts = Timeouts(connect=5, read=wait_seconds + 15, total=wait_seconds + 20)
        offered = offer.body(wait_seconds, max_leases)
        headers = {"Idempotency-Key": key}
        body = self._post(LEASES, offered, timeouts, headers, on_sent=_claim_sent, limit=max_leases * ANSWER_BYTES)
        if body is None:
            return []
        sent = body.get("leases", [body])
        if not isinstance(sent, list) or not sent:
            raise ProtocolError("leases")
        return self._parse_leases(sent)

    def report_unready(self, reason: str, message: str) -> None:
        """Report why this worker does not claim. The next claim says that it is ready again."""
        self._post(UNREADY, {"reason": reason, "message": message}, self._timeouts)

    def _parse_leases(self, sent: list[Any]) -> list[LeasePayload]:
        """Parse the leases; release those that cannot be parsed."""
        leases, unreadable = [], []
        for sent_lease in sent:
            try:
                leases.append(wire.lease(sent_lease))
            except ProtocolError as error:
                unreadable.append((sent_lease, error))
        for sent_lease, cause in unreadable:
            # If other jobs can be run, one that cannot be released is left to its acknowledge timeout.
            with contextlib.suppress(*(ServerUnreachable, RequestRejected) if leases else ()):
                self._decline(sent_lease, f"this worker cannot parse the job's {cause}")
        if unreadable and not leases:
            raise unreadable[0][1]
        return leases

    def _decline(self, sent: Any, message: str) -> None:
        """Release a job that cannot be parsed, so that another worker gets it at once."""
        lease_id = sent.get("lease_id") if isinstance(sent, dict) else None
        if isinstance(lease_id, str) and wire.IDENTIFIER.fullmatch(lease_id):
            self._post(f"{LEASES}/{lease_id}/release", {"message": message, "unable": True}, self._timeouts)

    def acknowledge(self, lease: LeasePayload) -> None:
        self._post_lease(lease, "acknowledge", {})

    def heartbeat(self, lease: LeasePayload, progress: dict[str, Any], *, within: float) -> HeartbeatResponse:
        """Renew the lease within so many seconds."""
        body = self._post_lease(lease, "heartbeat", progress, self._timeouts.capped(within))
        return _parse_heartbeat(body)

    def heartbeat_many(
        self, beats: Sequence[tuple[LeasePayload, dict[str, Any]]], *, within: float
    ) -> list[HeartbeatResponse | LeaseRejected | ServerConflict | RequestRefused | ServerUnreachable | ProtocolError]:
        """Renew many leases in one call. Returns for each the response, or what a single call would have raised."""
        body = {"leases": [{"lease_id": lease.lease_id, **progress} for lease, progress in beats]}
        answer = self._post(f"{LEASES}/heartbeat", body, self._timeouts.capped(within)) or {}
        results = answer.get("results")
        if not isinstance(results, list) or len(results) != len(beats):
            raise ProtocolError("results")
        return [_parse_batch_result(result, lease) for result, (lease, _) in zip(results, beats, strict=True)]

    def report(self, lease: LeasePayload, phase: str) -> None:
        self._post_lease(lease, "report", {"phase": phase})

    def log(self, lease: LeasePayload, seq: int, chunk: bytes, *, step: int = 0) -> None:
        self._post_lease(lease, "logs", {"step": step, "seq": seq, "chunk": base64.b64encode(chunk).decode()})

    def start_steps(self, lease: LeasePayload) -> wire.StartedSteps:
        """Return what is needed before the first step of a workflow job."""
        return wire.started_steps(self._post_lease(lease, "steps/start", {}))

    def begin_step(self, lease: LeasePayload, index: int, state: dict[str, Any]) -> wire.StepPayload:
        """Begin a step of a workflow job, and return what to do. `state`: what the steps before have left."""
        path = f"{LEASES}/{lease.lease_id}/steps/{index}/begin"
        return wire.step_order(self._post(path, state, self._timeouts, limit=ORDER_BYTES) or {})

    def end_step(self, lease: LeasePayload, index: int, conclusion: str) -> None:
        """End a step of a workflow job."""
        self._post_lease(lease, f"steps/{index}/end", {"conclusion": conclusion})

    def begin_artifact(self, lease: LeasePayload, name: str, size_bytes: int) -> str:
        """Announce an artifact, and return the address of its upload."""
        body = self._post_lease(lease, "artifacts", {"name": name, "size_bytes": size_bytes})
        if not isinstance(body.get("upload_url"), str):
            raise ProtocolError("upload_url")
        return str(body["upload_url"])

    def restore_cache(self, lease: LeasePayload, key: str, version: str) -> CacheDownload | None:
        """Return the cache entry of the key and version, or None."""
        return wire.cache_download(self._post_lease(lease, "caches/restore", {"key": key, "version": version}))

    def save_cache(self, lease: LeasePayload, key: str, version: str, size_bytes: int) -> str | None:
        """Announce a cache entry, and return the address of its upload; None if there is one."""
        body = self._post_lease(lease, "caches/save", {"key": key, "version": version, "size_bytes": size_bytes})
        url = body.get("upload_url")
        if url is not None and not isinstance(url, str):
            raise ProtocolError("upload_url")
        return url

    def store_output(self, lease: LeasePayload, output: bytes) -> str:
        """Store the output of a job, and return its name."""
        body = self._post_lease(lease, "output", {"output": base64.b64encode(output).decode()}, self._uploads)
        if not isinstance(body.get("output"), str):
            raise ProtocolError("output")
        return str(body["output"])

    def complete(
        self, lease: LeasePayload, result: dict[str, Any], offer: ClaimOffer | None = None
    ) -> LeasePayload | None:
        """End the job with a result, and claim the next one with `offer`. Returns its lease, or None."""
        return self._finish(lease, "complete", {"result": {"status": "uploaded", **result}}, offer)

    def fail(self, lease: LeasePayload, result: dict[str, Any], offer: ClaimOffer | None = None) -> LeasePayload | None:
        """End the job as failed, and claim the next one with `offer`. Returns its lease, or None."""
        return self._finish(lease, "fail", {"result": {"status": "failed", **result}}, offer)

    def _finish(
        self, lease: LeasePayload, operation: str, body: dict[str, Any], offer: ClaimOffer | None
    ) -> LeasePayload | None:
        """Send a final message with a claim. If it is refused, send it without one: the claim may be the reason.

        A refused message claims nothing. An older server answers 400 to the unknown field. Other reasons to refuse a
        claim, such as a pool that the worker has left, must not cost the result either.
        """
        if offer is None or not self._claims_next:
            self._post_lease(lease, operation, body)
            return None
        try:
            answer = self._post_lease(lease, operation, body | {"claim_next": offer.next_body()})
        except TransientRefusal:
            raise
        except RequestRefused as refusal:
            self._post_lease(lease, operation, body)
            if refusal.status == 400:
                logger.info("the server refuses claim_next: final messages are sent without it error=%r", str(refusal))
                self._claims_next = False
            return None
        return self._parse_next(answer.get("next_lease"))

    def _parse_next(self, sent: Any) -> LeasePayload | None:
        """Parse the next lease; release one that cannot be parsed. The final message counts in any case."""
        if sent is None:
            return None
        try:
            return self._parse_leases([sent])[0]
        except (ProtocolError, ServerUnreachable, RequestRejected) as error:
            logger.warning("next lease not usable error=%r", str(error))
            return None

    def acknowledge_cancel(self, lease: LeasePayload, message: str) -> None:
        self._post_lease(lease, "acknowledge-cancel", {"message": message})

    def release(self, lease: LeasePayload, message: str, *, unable: bool) -> None:
        """Release the job unexecuted. `unable`: not to this worker again, its machine cannot run the job."""
        self._post_lease(lease, "release", {"message": message, "unable": unable})

    def _post_lease(
        self, lease: LeasePayload, operation: str, body: dict[str, Any], timeouts: Timeouts | None = None
    ) -> dict[str, Any]:
        return self._post(f"{LEASES}/{lease.lease_id}/{operation}", body, timeouts or self._timeouts) or {}

    def _post(
        self,
        path: str,
        body: dict[str, Any],
        timeouts: Timeouts,
        headers: dict[str, str] | None = None,
        *,
        on_sent: Callable[[], None] | None = None,
        limit: int = ANSWER_BYTES,
    ) -> dict[str, Any] | None:
        answer = self._transport.post(
            path, encoded(body), timeouts=timeouts, headers=headers, on_sent=on_sent, limit=limit
        )
        if answer.status == 401:
            self._token.reload()
        return _parse_response(answer)


def _claim_sent() -> None:
    failpoint("worker.claim.sent")


def encoded(body: dict[str, Any]) -> bytes:
    """Return `body` as it is sent."""
    return json.dumps(body, separators=(",", ":")).encode()


def retry_after(answer: HttpResponseData) -> float | None:
    """Return the seconds of Retry-After, sent as seconds or as a date, or None if it is absent or invalid."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def is_transient(status: int, *, has_problem: bool) -> bool:
    """Report whether a refused request may succeed later: the token was rejected, or a proxy answered.

    Args:
        status: The HTTP status.
        has_problem: Whether the response has an error code of the server.
    """
    return status == 401 or (status in _OF_PROXIES and not has_problem)


def _parse_response(answer: HttpResponseData) -> dict[str, Any] | None:
    if answer.status in {200, 201}:
        return _document(answer)
    if answer.status == 204:
        return None
    if answer.status >= 500:
        raise ServerUnreachable(f"HTTP status {answer.status}", retry_after(answer))
    rejection = _rejection(answer)
    if answer.status in BUSY and rejection.code != ARTIFACT_QUOTA:
        raise ServerUnreachable(f"HTTP status {answer.status}", retry_after(answer))
    raise rejection


def _document(answer: HttpResponseData) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        body = None
    if answer.oversize or not isinstance(body, dict):
        # A proxy answered in place of the server: no valid response.
        raise ServerUnreachable(f"HTTP status {answer.status} without a JSON object")
    return body


def _rejection(answer: HttpResponseData) -> LeaseRejected | ServerConflict | RequestRefused:
    try:
        problem = _document(answer)
    except ServerUnreachable:
        problem = {}
    return _rejection_of(answer.status, problem)


def _rejection_of(status: int, problem: dict[str, Any]) -> LeaseRejected | ServerConflict | RequestRefused:
    code, detail = one_line(problem.get("code", UNKNOWN_CODE), 64), one_line(problem.get("detail", ""), 300)
    if status == 409 and code == "stale_lease":
        return LeaseRejected(one_line(problem.get("reason", "unknown"), 64))
    if status == 409:
        return ServerConflict(code, detail, problem)
    if is_transient(status, has_problem=code != UNKNOWN_CODE):
        return TransientRefusal(status, code, detail)
    return RequestRefused(status, code, detail)


def _parse_batch_result(
    result: Any, lease: LeasePayload
) -> HeartbeatResponse | LeaseRejected | ServerConflict | RequestRefused | ServerUnreachable | ProtocolError:
    """Parse one result of a batch call, which must be this lease's."""
    if not isinstance(result, dict) or result.get("lease_id") != lease.lease_id:
        return ProtocolError("lease_id")
    status, error = result.get("status"), result.get("error")
    try:
        if status == 200 and isinstance(result.get("body"), dict):
            return _parse_heartbeat(result["body"])
    except ProtocolError as unreadable:
        return unreadable
    if type(status) is not int or not isinstance(error, dict):
        return ProtocolError("results")
    if status in BUSY or status >= 500:
        return ServerUnreachable(f"HTTP status {status}")
    return _rejection_of(status, error)


def _parse_heartbeat(body: dict[str, Any]) -> HeartbeatResponse:
    deadline = body.get("cancel_deadline_seconds")
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise ProtocolError("cancel_deadline_seconds")
    reason = body.get("cancel_reason")
    return HeartbeatResponse(body.get("cancel_requested") is True, one_line(reason, 200) if reason else None, deadline)
