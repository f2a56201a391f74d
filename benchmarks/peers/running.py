"""Parts of the peers' installation that end with their scripts, and the one line that these print."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STARTS_WITHIN = 90.0


class NeverStarted(Exception):
    """A part of a peer's installation ended, or did not answer."""


def say(**figures: Any) -> None:
    """Print the line from which the harness reads the figures."""
    sys.stdout.write(json.dumps(figures) + "\n")


def rate(number: int, seconds: float) -> float:
    return round(number / seconds, 1)


def free_port(ports: Iterable[int] = (0,)) -> int:
    """Return a port on which nothing listens: the first of these, by default any."""
    for port in ports:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as found:
            return int(found.getsockname()[1])
    raise NeverStarted("no port is free")


@contextlib.contextmanager
def part(
    command: Sequence[str], log: Path, answers: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A child that is there while the block runs, once it answers. Raises NeverStarted."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        until = time.monotonic() + STARTS_WITHIN
        while not answers():
            if process.poll() is not None or time.monotonic() > until:
                raise NeverStarted(command[0])
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def answers_http(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
