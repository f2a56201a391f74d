"""A small real HTTP server that gives the responses of a test, good or bad, and records the requests."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).with_name("localhost.pem")


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int] = ("", 0)
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def call(self) -> str:
        """The last part of the path: acknowledge, heartbeat, …; `leases` is the claim."""
        return self.path.rsplit("/", 1)[-1]


@dataclass
class Answer:
    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0


Script = Answer | Callable[["Handler", Asked], None]


def problem(status: int, code: str, **facts: Any) -> Answer:
    body = {"type": "about:blank", "title": code, "status": status, "detail": "", "code": code, **facts}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


def stale(reason: str = "lease_expired") -> Answer:
    return problem(409, "stale_lease", reason=reason)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = Asked(self.path, dict(self.headers), self.rfile.read(length), self.client_address)
        script = self.server.scripted.next(asked)
        if callable(script):
            self.close_connection = True
            script(self, asked)
        else:
            self.answer(script)

    def do_GET(self) -> None:
        self.do_POST()

    def answer(self, answer: Answer) -> None:
        if answer.wait:
            self.server.scripted.closing.wait(answer.wait)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        if answer.status == 204:
            body = b""
        self.send_response(answer.status)
        for name, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(body))} | answer.headers
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    scripted: ScriptedServer

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is part of most of these tests."""


class ScriptedServer:
    """Gives the responses set by `on` in turn and repeats the last one; otherwise 200 {} (a claim: 204).

    `tls`: with CERTIFICATE.
    """

    def __init__(self, *, tls: bool = False) -> None:
        self._scheme = "https" if tls else "http"
        self._scripts: dict[str, list[Script]] = defaultdict(list)
        self._guard = threading.Lock()
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.scripted = self
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def on(self, call: str, *answers: Script) -> None:
        with self._guard:
            self._scripts[call] = list(answers)

    def next(self, asked: Asked) -> Script:
        with self._guard:
            self.asked.append(asked)
            scripts = self._scripts[asked.call]
            if not scripts:
                return Answer(204) if asked.call == "leases" else Answer()
            return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    def received(self, call: str) -> list[Asked]:
        with self._guard:
            return [asked for asked in self.asked if asked.call == call]

    @property
    def calls(self) -> list[str]:
        with self._guard:
            return [asked.call for asked in self.asked]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# --- answers that no well-behaved server gives ------------------------------------------------------------------------


def hang(handler: Handler, _: Asked) -> None:
    """Never answer."""
    handler.server.scripted.closing.wait(60)


def hang_up(handler: Handler, _: Asked) -> None:
    """Close the connection without a response."""
    with contextlib.suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)


def drip(handler: Handler, _: Asked) -> None:
    """One byte of a valid answer every tenth of a second."""
    body = b'{"run_id": "' + b"x" * 500 + b'"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    for position in range(len(head + body)):
        try:
            handler.wfile.write((head + body)[position : position + 1])
            handler.wfile.flush()
        except OSError:
            return
        if handler.server.scripted.closing.wait(0.1):
            return


def endless(handler: Handler, _: Asked) -> None:
    """A body without an end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n")
    with contextlib.suppress(OSError):
        while not handler.server.scripted.closing.is_set():
            handler.wfile.write(b" " * 65536)


def wait_until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Poll until `true()` is truthy and return it; fail the test after so many seconds.

    The pauses grow with the time that has passed: many of these conditions read the database or all of /proc, and
    whatever a test waits for needs the processor too.
    """
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if found := true():
            return found
        time.sleep(min(0.1, max(0.01, passed / 10)))
    raise AssertionError(f"not true within {seconds} s")


@contextlib.contextmanager
def scripted_server(*, tls: bool = False) -> Iterator[ScriptedServer]:
    server = ScriptedServer(tls=tls)
    try:
        yield server
    finally:
        server.close()
