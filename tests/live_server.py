"""The real server for tests: uvicorn in a process of its own, on a free port of the loopback, on the test database."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import requests

from config.paths import BASE_DIR


def patient(database_url: str, seconds: int = 60) -> str:
    """Return the address with `seconds` as the limit of statements and locks, in place of the product's options."""
    limits = f"-c%20statement_timeout%3D{seconds}s%20-c%20lock_timeout%3D{seconds}s"
    return f"{database_url}{'&' if '?' in database_url else '?'}options={limits}"


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition, and return its value. The limit is for machines under load: no test measures it.

    The pauses grow with the time that has passed: what a test waits for needs the processor that a poll takes.
    """
    began = time.monotonic()
    while not (found := condition()):
        passed = time.monotonic() - began
        assert passed < seconds, "it never came true"
        time.sleep(min(0.1, max(0.02, passed / 10)))
    return found


class Server:
    """`url`, and `log()`: all it has written."""

    def __init__(self, process: subprocess.Popen[bytes], address: tuple[str, int], log: Path) -> None:
        self.process, self.address, self._log = process, address, log
        self.url = f"http://{address[0]}:{address[1]}"

    def log(self) -> str:
        return self._log.read_text()

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.url}/healthz", timeout=5).status_code == 200
        return False

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)


# Not by its `--fd`, which takes every socket for one of a file: each answer then waits 40 ms for the other side's
# acknowledgement.
ASGI = """
import gc, os, socket, sys

gc.disable()  # as manage.py does
import django, uvicorn

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()
from orchestrator.http.asgi.server import GracefulServer, uvicorn_options

config = uvicorn.Config(**uvicorn_options(app=sys.argv[2]))
GracefulServer(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""
# The other kind of server, one thread a request.
WSGI = """
import signal, socket, socketserver, sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from config.wsgi import application

class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass

server = Server(("127.0.0.1", 0), Quiet, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.server_address = server.socket.getsockname()
server.server_name, server.server_port = server.server_address
server.setup_environ()
server.set_app(application)
# A shell that starts the suite in the background lets it ignore SIGINT, and this process inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
server.serve_forever()
"""


@contextlib.contextmanager
def serving(
    folder: Path,
    *,
    kind: str = "asgi",
    app: str = "config.asgi:application",
    prefix: Sequence[str] = (),
    **environment: str,
) -> Iterator[Server]:
    """A server with these variables, ended with the block. `app`: an ASGI application in the place of ours. `folder` gets its state and its log.

    `{address}` in a variable is the server's host and port. `prefix`: a command that executes the server in its own place.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "server.log").open("ab") as log:
        descriptor = listener.fileno()
        address = "{}:{}".format(*listener.getsockname())
        environment = {name: value.replace("{address}", address) for name, value in environment.items()}
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", ASGI if kind == "asgi" else WSGI, str(descriptor), app],
            cwd=BASE_DIR,
            env={**os.environ, "STATE_DIR": str(folder / "state"), **environment},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        server = Server(process, listener.getsockname(), folder / "server.log")
    try:
        eventually(server.answers)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        process.wait()
