"""The receiver of a webhook, which records what arrives, and now and then fails once."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Self

from standardwebhooks import Webhook, WebhookVerificationError

FAILED = 0.03  # of the first tries: repeated after five seconds
NETWORK = "127.0.0.0/8"


class WebhookReceiver:
    """A server in threads of this process.

    Attributes:
        secret: The secret of the webhook, once it is known.
        accepted: How often each event was accepted, by its id.
        wrong: Messages that were not signed with the secret.
    """

    def __init__(self, seed: int, *, failed: float = FAILED) -> None:
        self.secret = ""
        self._failed = failed
        self.accepted: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._tried: set[str] = set()
        self._chance = Random(f"{seed}/webhook")
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.receive({name.lower(): text for name, text in self.headers.items()}, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def receive(self, headers: dict[str, str], body: bytes) -> int:
        """Record a message. Returns the status of its answer."""
        name = headers.get("webhook-id", "")
        try:
            Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError as error:
            self.wrong.append(f"a delivery is not signed: {error}")
            return 400
        with self._lock:
            is_first = name not in self._tried
            self._tried.add(name)
            if is_first and self._chance.random() < self._failed:
                return 500
            self.accepted[name] += 1
        return 204
