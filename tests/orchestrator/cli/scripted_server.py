"""An HTTP server whose responses a test writes: for lost connections, repeated requests and redirects."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[[BaseHTTPRequestHandler, int], None]


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"{}", **headers: str) -> None:
    """Send a response."""
    handler.send_response(status)
    usual = {"Content_Type": "application/json", "Content_Length": str(len(body)), "Connection": "close"}
    for name, value in (usual | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


class ScriptedServer:
    """`url`, and `requests`: method, path and headers of each request in order."""

    def __init__(self, answer: Respond) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                scripted.requests.append((self.command, self.path, dict(self.headers)))
                self.content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.close_connection = True
                answer(self, len(scripted.requests))

            do_GET = do_POST = do_PATCH = handle_any  # noqa: N815 names of the base class

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@contextlib.contextmanager
def scripted(answer: Respond) -> Iterator[ScriptedServer]:
    """A server that calls `answer` with the handler and the number of the request, from 1."""
    server = ScriptedServer(answer)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()
