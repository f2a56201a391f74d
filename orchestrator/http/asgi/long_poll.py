"""Long polls: a claim that finds nothing looks again until its time is up. While it waits it costs no thread and no
database connection: Django is done with it, and only its connection and its body are kept."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from orchestrator.http.asgi.bodies import Application, Message, Receive, Send, replay
from orchestrator.http.asgi.poll_attempt import LOOK, NO_WORK, PollAttempt, poll_attempt
from orchestrator.http.db_scope import release_connection_after
from orchestrator.http.observability.access_log import CLIENT_CLOSED_REQUEST
from orchestrator.notifications.hub import NotificationHub, waking_of_this_loop
from orchestrator.notifications.metrics import LOOKS
from orchestrator.notifications.waiters import WakeReason

PERIOD = 0.25  # seconds between two looks, where a thread has to wait
MAX_SECONDS = 60.0
FIRST = WakeReason("first")
_OUTCOMES = {200: "work", 201: "work", NO_WORK: "nothing", CLIENT_CLOSED_REQUEST: "gone"}


def long_poll(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A view that answers 204 for as long as there is nothing, and whose caller may wait for it."""
    once = release_connection_after(view)

    @csrf_exempt  # DRF asks for the token itself, where a session is used
    def waiting(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        look = poll_attempt(request)
        if look is None:
            return _in_thread(once, request, **kwargs)
        response = view(request, **kwargs)
        if response.status_code == NO_WORK:
            look.nothing_for(request)
        return response

    waiting.is_long_poll = True  # type: ignore[attr-defined]  # `http.asgi.routes` has its path, and a test compares
    return waiting


def _in_thread(look: Callable[..., HttpResponse], request: HttpRequest, **kwargs: Any) -> HttpResponse:
    """Under WSGI a request has its thread anyway."""
    until = time.monotonic() + _wait_seconds(_sent(request.body))
    response = look(request, **kwargs)
    while response.status_code == NO_WORK and time.monotonic() < until:
        time.sleep(min(PERIOD, max(0.0, until - time.monotonic())))
        response = look(request, **kwargs)
    return response


def _sent(body: bytes) -> dict[str, Any]:
    """Read generously here: the view itself refuses what is wrong, at the first look."""
    if b"wait_seconds" not in body:
        return {}
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return sent if isinstance(sent, dict) else {}


def _wait_seconds(sent: dict[str, Any]) -> float:
    try:
        return min(MAX_SECONDS, max(0.0, float(sent["wait_seconds"])))
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0.0


class LongPollMiddleware:
    """An ASGI application around Django, for the paths that can wait (`http.asgi.routes`). Each look is a request of
    its own to Django: it asks for the token anew, so a worker that was revoked meanwhile gets nothing."""

    def __init__(self, inner: Application, waking: NotificationHub | None = None) -> None:
        self.inner = inner
        self._waking = waking

    @property
    def waking(self) -> NotificationHub:
        return self._waking or waking_of_this_loop()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.inner(scope, receive, send)
            return
        body = (await receive())["body"]
        sent = _sent(body)
        seconds = _wait_seconds(sent)
        if not seconds:
            await self.inner(scope, replay(body, receive), send)
            return
        await self.waking.start()
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            look = PollAttempt(sent, until=time.monotonic() + seconds)
            await _PollSession(self, scope, body, look, gone).answer(send)
        finally:
            gone.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _PollSession:
    """One call that may wait."""

    def __init__(
        self, room: LongPollMiddleware, scope: Message, body: bytes, look: PollAttempt, gone: "asyncio.Future[None]"
    ) -> None:
        self.inner, self.waking, self.room = room.inner, room.waking, room.waking.room
        self.scope, self.body, self.look, self.gone = scope, body, look, gone
        self.calls, self.status = 0, CLIENT_CLOSED_REQUEST

    async def answer(self, send: Send) -> None:
        """Look until there is something to say, or the time is up: then what the last look said."""
        wake: WakeReason | None = FIRST
        try:
            while wake is not None:
                await self._look(wake, send)
                if not self.look.goes_on:
                    return
                wake = await self._woken()
        except asyncio.CancelledError:
            self._tell(CLIENT_CLOSED_REQUEST)
            raise
        if self.gone.done():
            self._tell(CLIENT_CLOSED_REQUEST)
            return
        self._tell(self.look.messages[0]["status"])
        for message in self.look.messages:
            await send(message)

    async def _woken(self) -> WakeReason | None:
        assert self.look.kind is not None  # noqa: S101 it goes on only with a kind
        left = self.look.until - time.monotonic()
        wake = await self.room.wait(self.look.kind, calls=self.calls, seconds=left, gone=self.gone)
        if wake and self.gone.done():
            self.room.hand_back(self.look.kind, wake)
            return None
        return wake

    async def _look(self, wake: WakeReason, send: Send) -> None:
        async with self.waking.looks:
            if self.gone.done():  # it went while it stood in line: no lease for nobody
                self._left_in_line(wake)
                return
            self.calls = self.room.calls
            self.status, self.look.goes_on, self.look.messages = CLIENT_CLOSED_REQUEST, False, []
            await self.inner({**self.scope, LOOK: self.look}, replay(self.body, self._disconnected), self._kept(send))
        await self._hand_on(wake)

    def _left_in_line(self, wake: WakeReason) -> None:
        self._tell(CLIENT_CLOSED_REQUEST)
        self.look.goes_on = False
        if self.look.kind:
            self.room.hand_back(self.look.kind, wake)

    def _kept(self, send: Send) -> Send:
        """Sends what Django answers, unless the call goes on waiting."""

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            if self.look.goes_on:
                self.look.messages.append(message)
            else:
                await send(message)

        return keep

    async def _disconnected(self) -> Message:
        await asyncio.shield(self.gone)
        return {"type": "http.disconnect"}

    async def _hand_on(self, wake: WakeReason) -> None:
        """Others wait too: who found work lets them look for more, who found none lets another one try."""
        outcome = _OUTCOMES.get(self.status, "refused")
        LOOKS.labels(wake.cause, outcome).inc()
        match outcome, self.look.kind:
            case "work", (pool, _) as kind if not self.room.found(kind):
                self.waking.call_elsewhere(pool)
            case "gone", (_, _) as kind:
                self.room.hand_back(kind, wake)
            case "nothing" | "refused", (_, _) as kind:
                self.room.missed(kind, wake)

    def _tell(self, status: int) -> None:
        if self.look.line:
            self.look.line.tell(status)
