"""Long polls: a claim that finds no work waits, and tries again until its time is up.

A waiting claim costs no thread and no database connection: only its connection and its body are kept. Each attempt is
a request of its own, which is authenticated again, so a worker whose token was revoked gets no job.

    arrive -> attempt -> answer: work, a refusal, or no work and the time is up
                 ^          |
                 |          v no work: wait in the WaiterRegistry
                 +-- woken by a job that this process queued, a notification, another waiter, or polling
                            |
                            v the client disconnects, or the process stops: end
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.principals import WorkerPrincipal
from orchestrator.http.asgi.body_limit import Application, Message, Receive, Send, replay
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST, AccessLogEntry
from orchestrator.pubsub.hub import NotificationHub, hub_of_running_loop
from orchestrator.pubsub.metrics import ATTEMPTS
from orchestrator.pubsub.waiters import OfferKey, WakeReason

WSGI_POLL_SECONDS = 0.25  # between two attempts where a request keeps its thread
FIRST = WakeReason("first")
NO_WORK, UNAVAILABLE = 204, 503
ATTEMPT = "orchestrator.poll_attempt"  # key of the scope
OFFER_FIELDS = ("job_types", "labels", "capabilities", "pool")  # of a claim's body: they decide which jobs fit
_OUTCOMES = {200: "work", 201: "work", NO_WORK: "nothing", CLIENT_CLOSED_REQUEST: "gone"}


@dataclass(frozen=True)
class PollTerms:
    """The part of a claim's body that decides how long the claim waits. The view reports what is wrong with it.

    Attributes:
        field: Name of the member with the number of seconds.
        default_seconds: The wait of a claim without the member.
        max_seconds: The longest wait.
    """

    field: str
    default_seconds: float
    max_seconds: float

    def may_wait(self, body: bytes) -> bool:
        """Return whether a claim with this body may wait, without parsing it: no caller is authenticated yet."""
        return self.default_seconds > 0 or self.field.encode() in body

    def seconds(self, claim: dict[str, Any]) -> float:
        """Return how long the claim waits; 0 if the member has no number."""
        value = claim.get(self.field)
        try:
            return self.default_seconds if value is None else min(self.max_seconds, max(0.0, float(value)))
        except (ValueError, TypeError, OverflowError):
            return 0.0

    def parse(self, body: bytes) -> dict[str, Any]:
        """Return the claim in a body, or an empty one if the body is no JSON object or names no number of seconds."""
        if self.field.encode() not in body:
            return {}
        try:
            claim = json.loads(body)
        except (ValueError, RecursionError):
            return {}
        return claim if isinstance(claim, dict) else {}


WAIT_SECONDS: Final = PollTerms("wait_seconds", 0.0, 60.0)
POLL_TIMEOUT: Final = PollTerms("poll_timeout", 30.0, 900.0)  # document 002
# The views that `long_poll` wraps, by route.
LONG_POLLS: Final = {
    "/v1/runtime/leases": WAIT_SECONDS,
    "/api/v1/internal/lease": WAIT_SECONDS,
    "/v0/runners/<str:runner>/jobs": POLL_TIMEOUT,
}
_PATTERNS = [
    (re.compile(re.sub("<[a-z:]+>", "[^/]+", route)), terms) for route, terms in LONG_POLLS.items() if "<" in route
]


def poll_terms(method: str, path: str) -> PollTerms | None:
    """Return the terms of a request that may wait, or None for any other request."""
    if method != "POST":
        return None
    if (terms := LONG_POLLS.get(path)) is not None:
        return terms
    return next((terms for pattern, terms in _PATTERNS if pattern.fullmatch(path)), None)


@dataclass
class PollAttempt:
    """State of one long poll, shared by the middleware in the event loop and by Django's view through the scope.

    The body is parsed when an authenticated worker was first answered that there is no work. Before, it is not trusted
    with the time of the event loop, which all requests share.

    Attributes:
        terms: How the claim names its wait.
        body: Body of the claim.
        arrived: Time of its arrival, on the monotonic clock.
        claim: The parsed body; None until then.
        until: End of the wait, on the monotonic clock; 0 until then.
        offer: What the worker offers; None until then, and for a claim that does not wait.
        is_empty: The last attempt found no work.
        entry: The access log entry, from the first attempt on.
        keep_waiting: The response is withheld, and another attempt follows.
        messages: The ASGI messages of the withheld response.
    """

    terms: PollTerms
    body: bytes
    arrived: float = field(default_factory=time.monotonic)
    claim: dict[str, Any] | None = None
    until: float = 0.0
    offer: OfferKey | None = None
    is_empty: bool = False
    entry: AccessLogEntry | None = None
    keep_waiting: bool = False
    messages: list[Any] = field(default_factory=list)

    def should_keep_waiting(self, entry: AccessLogEntry, status: int) -> bool:
        """Decide whether the claim waits on after this response. The database may be unavailable while it waits.

        Args:
            entry: The access log entry of this attempt. That of the first attempt is kept.
            status: The HTTP status of the response.
        """
        self.entry = self.entry or entry
        can_wait = (self.is_empty or status in {NO_WORK, UNAVAILABLE}) and self.offer is not None
        self.keep_waiting = can_wait and time.monotonic() < self.until
        return self.keep_waiting

    def mark_empty(self, caller: Any, path: str) -> None:
        """Record how long the caller waits and what it offers, after there was no work for that.

        Workers with equal offers can take the same jobs, so it is enough to wake one of them for a job. The offer is
        compared by its SHA-256, because it may have 64 KiB and thousands are remembered.

        Args:
            caller: The principal of the claim.
            path: The path of the claim.
        """
        if isinstance(caller, WorkerPrincipal) and self.asks_for_wait():
            worker, claim = caller.worker, self.claim or {}
            requested = {name: claim.get(name) for name in OFFER_FIELDS}
            offer = [path, requested, list(worker.labels), list(worker.capabilities)]
            self.offer = offer_key(worker.pool.slug, offer)

    def mark_nothing_to_claim(self, response: "NothingToClaim") -> None:
        """Record the same from a response that names the offer."""
        self.is_empty = True
        if self.asks_for_wait():
            self.offer = response.offer

    def asks_for_wait(self) -> bool:
        """Return whether the claim asks for a wait. The first call parses the body."""
        if self.claim is None:
            self.claim = self.terms.parse(self.body)
            self.until = self.arrived + self.terms.seconds(self.claim)
        return self.until > self.arrived

    def outcome(self, status: int) -> str | None:
        """Return the outcome of an attempt with this response, a label of a metric; None for a refusal."""
        return "nothing" if self.is_empty else _OUTCOMES.get(status)


def offer_key(pool: str, offer: Any) -> OfferKey:
    """Return the key of an offer, which is a JSON value: equal offers in a pool can take the same jobs."""
    serialized = json.dumps(offer, sort_keys=True).encode()
    return OfferKey(pool, hashlib.sha256(serialized).hexdigest())


class NothingToClaim(HttpResponse):
    """The response to a claim without work, in an API that has no 204 for it.

    Attributes:
        offer: What the worker offered.
    """

    def __init__(self, content: bytes, *, offer: OfferKey, content_type: str = "application/json") -> None:
        super().__init__(content, content_type=content_type)
        self.offer = offer


def poll_attempt(request: HttpRequest) -> PollAttempt | None:
    """Return the state of the long poll to which this request belongs, or None for any other request."""
    found = getattr(request, "scope", {}).get(ATTEMPT)
    return found if isinstance(found, PollAttempt) else None


def is_empty(response: HttpResponseBase) -> bool:
    """Return whether this is the response to a claim that found no work."""
    return response.status_code == NO_WORK or isinstance(response, NothingToClaim)


def long_poll(view: Callable[..., HttpResponse], terms: PollTerms = WAIT_SECONDS) -> Callable[..., HttpResponse]:
    """Wrap a view that answers 204 or NothingToClaim while there is no work, so that its caller may wait for work.

    Under ASGI the view runs once for each attempt. Under WSGI the request keeps its thread while it waits.

    Args:
        view: The view.
        terms: How its protocol names the wait: those of its route in `LONG_POLLS`.
    """
    attempt_view = release_connection_after(view)

    @csrf_exempt  # DRF checks the CSRF token itself where a session is used
    def waiting_view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        attempt = poll_attempt(request)
        if attempt is None:
            return _poll_in_thread(attempt_view, terms, request, **kwargs)
        response = view(request, **kwargs)
        if isinstance(response, NothingToClaim):
            attempt.mark_nothing_to_claim(response)
        elif response.status_code == NO_WORK:
            attempt.mark_empty(getattr(request, "user", None), request.path)
        return response

    waiting_view.is_long_poll = True  # type: ignore[attr-defined]  # a test compares these with `router.LONG_POLLS`
    return waiting_view


def _poll_in_thread(
    view: Callable[..., HttpResponse], terms: PollTerms, request: HttpRequest, **kwargs: Any
) -> HttpResponse:
    until = time.monotonic() + terms.seconds(terms.parse(request.body))
    response = view(request, **kwargs)
    while is_empty(response) and time.monotonic() < until:
        time.sleep(min(WSGI_POLL_SECONDS, max(0.0, until - time.monotonic())))
        response = view(request, **kwargs)
    return response


class LongPollMiddleware:
    """An ASGI application around Django for the paths that can wait (`LONG_POLLS`)."""

    def __init__(self, inner: Application, hub: NotificationHub | None = None) -> None:
        self.inner = inner
        self._hub = hub

    @property
    def hub(self) -> NotificationHub:
        """The hub in which the claims of this event loop wait."""
        return self._hub or hub_of_running_loop()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        terms = poll_terms(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if terms is None:
            await self.inner(scope, receive, send)
            return
        body = (await receive())["body"]
        if not terms.may_wait(body):
            await self.inner(scope, replay(body, receive), send)
            return
        await self.hub.start()
        disconnected = asyncio.ensure_future(_until_disconnect(receive))
        try:
            session = _PollSession(self, scope, PollAttempt(terms, body), disconnected=disconnected)
            await session.answer(send)
        finally:
            disconnected.cancel()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _PollSession:
    """One claim that may wait."""

    def __init__(
        self,
        middleware: LongPollMiddleware,
        scope: Message,
        attempt: PollAttempt,
        *,
        disconnected: "asyncio.Future[None]",
    ) -> None:
        self.inner, self.hub, self.waiters = middleware.inner, middleware.hub, middleware.hub.waiters
        self.scope, self.attempt, self.disconnected = scope, attempt, disconnected
        self.notifications, self.status = 0, CLIENT_CLOSED_REQUEST

    async def answer(self, send: Send) -> None:
        """Try until there is a response to send, or the time is up: then send the last response."""
        reason: WakeReason | None = FIRST
        try:
            while reason is not None:
                try:
                    await self._try(reason, send)
                finally:
                    self._end_attempt(reason)
                if not self.attempt.keep_waiting:
                    return
                reason = await self._wait()
        except asyncio.CancelledError:
            self._record(CLIENT_CLOSED_REQUEST)
            raise
        if self.disconnected.done():
            self._record(CLIENT_CLOSED_REQUEST)
            return
        self._record(self.attempt.messages[0]["status"])
        for message in self.attempt.messages:
            await send(message)

    async def _wait(self) -> WakeReason | None:
        """Wait for a reason to try again. Returns None if the time is up or the client disconnected."""
        assert self.attempt.offer is not None  # noqa: S101 only an attempt with an offer keeps waiting
        seconds = self.attempt.until - time.monotonic()
        reason = await self.waiters.wait(
            self.attempt.offer, notifications=self.notifications, seconds=seconds, disconnected=self.disconnected
        )
        if reason and self.disconnected.done():
            self.waiters.wake(self.attempt.offer, reason)
            self.waiters.end_attempt(self.attempt.offer, reason)
            return None
        return reason

    async def _try(self, reason: WakeReason, send: Send) -> None:
        async with self.hub.attempts:
            if self.disconnected.done():  # while queued: do not claim
                self._give_up(reason)
                return
            self.notifications = self.waiters.notifications
            self.status, self.attempt.keep_waiting, self.attempt.messages = CLIENT_CLOSED_REQUEST, False, []
            self.attempt.is_empty = False
            scope = {**self.scope, ATTEMPT: self.attempt}
            await self.inner(scope, replay(self.attempt.body, self._receive_disconnect), self._withholding(send))
        await self._wake_next(reason)

    def _end_attempt(self, reason: WakeReason) -> None:
        if self.attempt.offer is not None:
            found_work = {"work": True, "nothing": False}.get(self.attempt.outcome(self.status) or "")
            self.waiters.end_attempt(self.attempt.offer, reason, found_work=found_work)

    def _give_up(self, reason: WakeReason) -> None:
        self._record(CLIENT_CLOSED_REQUEST)
        self.attempt.keep_waiting = False
        if self.attempt.offer:
            self.waiters.wake(self.attempt.offer, reason)

    def _withholding(self, send: Send) -> Send:
        """Return a `send` that keeps Django's response while the claim waits on, and sends it otherwise."""

        async def send_or_keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            if self.attempt.keep_waiting:
                self.attempt.messages.append(message)
            else:
                await send(message)

        return send_or_keep

    async def _receive_disconnect(self) -> Message:
        await asyncio.shield(self.disconnected)
        return {"type": "http.disconnect"}

    async def _wake_next(self, reason: WakeReason) -> None:
        """Wake other waiters: for more work after work was found, for another attempt after none was found."""
        outcome = self.attempt.outcome(self.status) or "refused"
        ATTEMPTS.labels(reason.cause, outcome).inc()
        offer = self.attempt.offer
        if offer is None:
            return
        match outcome:
            case "work" if not self.waiters.on_work_found(offer):
                self.hub.notify_other_processes(offer.pool)
            case "gone":
                self.waiters.wake(offer, reason)
            case "nothing" | "refused":
                self.waiters.on_empty(offer, reason)

    def _record(self, status: int) -> None:
        if self.attempt.entry:
            self.attempt.entry.record(status, is_routine=status == NO_WORK or self.attempt.is_empty)
