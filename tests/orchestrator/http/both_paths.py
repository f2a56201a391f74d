"""Sends a request through Django and through the fast path, and compares all that the two leave behind."""

import io
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction

from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.sync_handler import DISCONNECTED, SyncASGIHandler
from orchestrator.http.fast_path import FastPath, FastResponse
from orchestrator.http.observability import metrics
from orchestrator.http.wsgi import FastPathWSGI
from runtime_jobs.models import Job

KINDS = pytest.mark.parametrize("kind", ["asgi", "wsgi"])


@dataclass(frozen=True)
class Sent:
    """A request on the wire. A header may occur twice."""

    path: str
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    query: str = ""
    scheme: str = "http"
    peer: str = "192.0.2.7"
    length: str | None = None


@dataclass
class Received:
    """A response, and what else the request left behind. Random ids and timestamps are replaced."""

    status: int
    headers: list[tuple[str, str]]
    body: str
    is_known: bool = False  # takes turns by its credentials from now on
    clients: list[str] = field(default_factory=list)  # that take turns by some credentials from now on
    request_id: str = field(default="", compare=False)
    log: list[str] = field(default_factory=list)
    counted: list[tuple[str, ...]] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)


def by_asgi(handler, sent, **scope):
    """Send a request through the part of the handler that runs in a thread, which is the test's own."""
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in with_length(sent)]
    connected = SimpleNamespace(done=lambda: False)
    path = sent.path.partition("?")[0]
    given_scope = {
        "type": "http", "method": sent.method, "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": sent.query.encode(), "headers": headers, "client": (sent.peer, 4), "server": ("127.0.0.1", 80),
        "scheme": sent.scheme, "http_version": "1.1", DISCONNECTED: connected,
    }  # fmt: skip
    handler.identities = ClientIdentities()
    body = io.BytesIO(sent.body)
    response = handler.run(given_scope | scope, body, handler.match(given_scope, body))
    if isinstance(response, FastResponse):
        handler.note_caller(response, given_scope)
    is_known = handler.identities.identify(given_scope) != sent.peer
    clients = sorted(key for _, key in handler.identities._known.values())
    if isinstance(response, FastResponse):
        return Received(response.status, list(response.headers), response.body.decode(), is_known, clients)
    return Received(response.status_code, list(response.items()), response.content.decode(), is_known, clients)


def by_wsgi(application, sent):
    """Send a request through a WSGI application."""
    environ = {
        "REQUEST_METHOD": sent.method, "SCRIPT_NAME": "", "PATH_INFO": sent.path, "QUERY_STRING": sent.query,
        "REMOTE_ADDR": sent.peer, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": sent.scheme, "wsgi.input": io.BytesIO(sent.body), "wsgi.errors": io.StringIO(),
    }  # fmt: skip
    for name, value in with_length(sent):
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    started = []
    chunks = application(environ, lambda status, headers: started.append((status, headers)))
    body = b"".join(chunks)
    if hasattr(chunks, "close"):
        chunks.close()
    ((status, headers),) = started
    return Received(int(status.partition(" ")[0]), headers, body.decode())


def with_length(sent):
    """Return the headers of a request as a client sends them."""
    named = {name.lower() for name, _ in sent.headers}
    length = str(len(sent.body)) if sent.length is None else sent.length
    more = [] if "content-length" in named or not length or length == "0" else [("Content-Length", length)]
    return [*sent.headers, *more, *([] if "host" in named else [("Host", "localhost")])]


def rows_of_jobs():
    """Return what the native calls leave in the rows of jobs."""
    rows = Job.objects.order_by("pk").values_list("state", "event_seq", "source_address")
    return [tuple(map(str, row)) for row in rows]


def tried(answer, sent, caplog, rows=rows_of_jobs):
    """Send a request, observe what it did, and undo that. `rows` returns what it left in the database."""
    caplog.clear()
    for metric in (metrics._requests, metrics._seconds):
        metric.clear()
    savepoint = transaction.savepoint()
    try:
        with caplog.at_level(logging.DEBUG):
            found = answer(sent)
        found.rows = rows()
    finally:
        transaction.savepoint_rollback(savepoint)
    found.request_id = dict(found.headers).get("X-Request-Id", "")
    found.headers = sorted((name.lower(), normalized(value)) for name, value in found.headers)
    found.body = normalized(found.body)
    # Django's own line of a response with 5xx repeats the path; `orchestrator.access` and the traceback remain.
    lines = [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if not record.name.startswith("django.")
    ]
    found.log = [normalized(re.sub(r"\d+ ms", "N ms", line)) for line in lines]
    found.counted = sorted((*key, str(value)) for key, value in counters().items())
    return found


def normalized(text):
    """Replace random ids, tokens and timestamps."""
    text = re.sub(r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN", text)
    text = re.sub(r"\b(rt[a-z]|req)_[0-7][0-9a-hjkmnp-tv-z]{25}", r"\1_ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME", text)


def counters():
    """Return the metrics of requests by method, route and status."""
    return {
        (sample.labels["method"], sample.labels["route"], sample.labels.get("status", "")): sample.value
        for metric in (metrics._requests, metrics._seconds)
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(("requests_total", "seconds_count"))
    }


def compare(handlers, kind, cases, caplog, *, is_fast, rows=rows_of_jobs):
    """Send each request both ways: everything that `tried` observes is the same, and the path is the expected one."""
    plain, fast = handlers[kind]
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        execute = FastPath.answer
        patch.setattr(FastPath, "answer", lambda *args, **kwargs: taken.append(1) or execute(*args, **kwargs))
        for name, sent in cases.items():
            taken.clear()
            expected = tried(plain, sent, caplog, rows)
            assert not taken
            assert tried(fast, sent, caplog, rows) == expected, name
            assert len(taken) == is_fast, f"{name} takes {'no' if is_fast else 'the'} fast path"
            assert len(expected.counted) == 2, "one response and its time"
            assert sum(" N ms " in line for line in expected.log) == 1


@contextmanager
def transaction_kept_open():
    """Let no request close the connection of the test's transaction, as with Django's test client."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def new_servers(routes):
    """By kind of server: the application without and with the fast path, as functions from Sent to Received.

    No thread starts. The middleware reads the settings of the test.
    """
    plain, fast = SyncASGIHandler(), SyncASGIHandler(FastPath(routes))
    django = WSGIHandler()
    fast_wsgi = FastPathWSGI(FastPath(routes), django)
    return {
        "asgi": (lambda sent: by_asgi(plain, sent), lambda sent: by_asgi(fast, sent)),
        "wsgi": (lambda sent: by_wsgi(django, sent), lambda sent: by_wsgi(fast_wsgi, sent)),
    }
