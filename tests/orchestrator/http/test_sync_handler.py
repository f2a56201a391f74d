"""A request under ASGI runs in one thread from its first line to its last, and learns of a disconnect."""

import asyncio
import logging
import threading

import pytest
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse

from orchestrator.http.asgi import sync_handler
from orchestrator.http.asgi.sync_handler import SyncASGIHandler, client_disconnected
from orchestrator.http.errors.problems import ApiError
from tests.live_server import eventually

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/healthz",
    "raw_path": b"/healthz",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"localhost")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
    "scheme": "http",
    "http_version": "1.1",
}


class Caller:
    """A client: `leave` disconnects it; `heard` are the messages that it received."""

    def __init__(self):
        self.heard, self._asked, self.leave = [], False, asyncio.Event()

    async def receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.heard.append(message)

    async def call(self, application):
        await asyncio.wait_for(application(SCOPE, self.receive, self.send), 20)


@pytest.fixture
def handler():
    made = SyncASGIHandler()
    yield made
    made.threads.executor.shutdown()
    made.login_threads.executor.shutdown()


def answering(handler, monkeypatch, view):
    """Let the view stand in the place of all addresses, behind the middleware."""
    monkeypatch.setattr(handler, "_get_response", view)
    monkeypatch.setattr("orchestrator.http.middleware.access_log_entry", Entry)
    Entry.recorded = []
    handler.load_middleware()


class Entry:
    """A test double of an access log entry."""

    recorded: list[int] = []

    def __init__(self, _request):
        pass

    def record(self, status, *, is_routine):
        assert not is_routine
        Entry.recorded.append(status)


def test_a_request_has_one_thread_which_is_not_the_loop_s(handler, monkeypatch):
    seen = []

    def view(_request):
        seen.append(threading.current_thread())
        response = HttpResponse(b"fine")
        response._resource_closers.append(lambda: seen.append(threading.current_thread()))
        return response

    answering(handler, monkeypatch, view)
    caller = Caller()
    asyncio.run(caller.call(handler))
    assert [message.get("status") for message in caller.heard] == [200, None]
    assert caller.heard[1]["body"] == b"fine"
    assert len({*seen, threading.current_thread()}) == 2
    assert len(seen) == 2, "it was closed, which gives its connection back"


def test_a_client_that_disconnects_before_the_response_is_logged_as_499(handler, monkeypatch):
    async def scene():
        caller = Caller()
        loop = asyncio.get_running_loop()

        def view(request):
            assert not client_disconnected(request)
            loop.call_soon_threadsafe(caller.leave.set)
            eventually(lambda: client_disconnected(request))
            return HttpResponse(b"too late")

        answering(handler, monkeypatch, view)
        await caller.call(handler)
        return caller.heard

    assert asyncio.run(scene()) == []
    assert Entry.recorded == [499]


def test_a_stream_ends_when_its_caller_goes(handler, monkeypatch):
    ended = []

    async def scene():
        caller = Caller()

        async def drops():
            try:
                while True:
                    yield b"drop"
                    caller.leave.set()
                    await asyncio.sleep(0)
            finally:
                ended.append("the source")

        def view(_request):
            response = StreamingHttpResponse(drops())
            response._resource_closers.append(lambda: ended.append("the response"))
            return response

        answering(handler, monkeypatch, view)
        await caller.call(handler)
        return caller.heard

    heard = asyncio.run(scene())
    assert heard[0]["status"] == 200
    assert heard[1]["body"] == b"drop"
    assert ended == ["the source", "the response"]


def test_a_stream_that_breaks_is_closed_too(handler, monkeypatch):
    ended = []

    async def breaks():
        yield b"drop"
        raise RuntimeError

    def view(_request):
        response = StreamingHttpResponse(breaks())
        response._resource_closers.append(lambda: ended.append("the response"))
        return response

    answering(handler, monkeypatch, view)
    with pytest.raises(RuntimeError):
        asyncio.run(Caller().call(handler))
    assert ended == ["the response"]


@pytest.mark.django_db(transaction=True)
def test_what_streams_has_given_its_connection_back_before_it_begins(handler, monkeypatch):
    held = []

    async def drops():
        held.append(len(connections))
        yield b"drop"

    connections: set[int] = set()

    def view(_request):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        taken, close = connection.connection, connection.pool.putconn
        connections.add(id(taken))
        monkeypatch.setattr(connection.pool, "putconn", lambda one: (connections.discard(id(one)), close(one)))
        return StreamingHttpResponse(drops())

    answering(handler, monkeypatch, view)
    asyncio.run(Caller().call(handler))
    assert held == [0]


def test_what_is_no_request_is_refused(handler):
    with pytest.raises(ValueError, match="HTTP only"):
        asyncio.run(handler({"type": "websocket"}, None, None))


def test_a_view_that_fails_is_answered_and_reported(handler, monkeypatch, caplog):
    def view(_request):
        raise RuntimeError("on purpose")

    answering(handler, monkeypatch, view)
    caller = Caller()
    with caplog.at_level(logging.CRITICAL):
        asyncio.run(caller.call(handler))
    assert caller.heard[0]["status"] == 500
    assert Entry.recorded == [500]


def test_a_burst_of_streams_above_the_limit_takes_no_thread_once_the_limit_is_reached(handler, monkeypatch):
    """All requests of the burst are queued before the first of them is admitted."""
    full = ApiError(429, "too_many_streams", "Close one.")
    views, refusals = [], []

    def view(_request):
        views.append(1)
        return HttpResponse(b"the last place")

    answering(handler, monkeypatch, view)
    monkeypatch.setattr(sync_handler, "early_stream_refusal", lambda _: full if views else None)
    handler.threads.threads = handler.threads.shares = 1

    async def scene():
        callers = [Caller() for _ in range(20)]
        await asyncio.gather(*(caller.call(handler) for caller in callers))
        refusals.extend(caller.heard[0]["status"] for caller in callers)

    asyncio.run(scene())
    assert len(views) == 1
    assert sorted(refusals) == [200, *[429] * 19]


def test_clients_divide_the_database_connections(settings):
    settings.REQUEST_THREADS = 40
    settings.DATABASES["default"]["OPTIONS"]["pool"] = {"max_size": 6}
    assert SyncASGIHandler().threads.shares == 6
