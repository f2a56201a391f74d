"""The real server for tests: uvicorn in a process of its own, on a free port of the loopback, on the test database."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests

from config.places import BASE_DIR


def eventually(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait for a condition, and return what it said."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
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
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{self.url}/healthz", timeout=5).status_code == 200
        return False

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)


@contextlib.contextmanager
def serving(folder: Path, **environment: str) -> Iterator[Server]:
    """A server with these variables, ended with the block. `folder` gets its state and its log."""
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "server.log").open("ab") as log:
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--fd", str(descriptor)]
        command += ["--no-proxy-headers", "--no-access-log", "--timeout-graceful-shutdown", "2"]
        process = subprocess.Popen(
            command,
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
