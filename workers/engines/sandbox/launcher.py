"""The worker's side of `launcher.pl`, the last program before the command: its orders, and the talk until "go"."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workers.engines.contract import SandboxFailed

PERL = "/usr/bin/perl"
SCRIPT = Path(__file__).with_name("launcher.pl").read_bytes()
START_SECONDS = 30.0
OPEN_FILES = (1024, 4096)  # soft and hard
PROGRAM_FD = OPEN_FILES[1] - 1  # where the only program waits when allow_exec is false
RLIMIT_DATA, RLIMIT_NPROC = 2, 6


@dataclass(frozen=True)
class PathRule:
    """A Landlock rule: rights below a directory, rights on a file; a path that is not there is no rule."""

    for_directory: int
    for_file: int
    path: str


@dataclass
class LaunchSpec:
    """What the launcher does, in its order, before it starts the command."""

    argv: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    filter: bytes
    port: int | None = None
    one_program: bool = False
    own_session: bool = False
    limits: list[tuple[int, int, int]] = field(default_factory=list)
    init_filter: bytes = b""  # not empty: it is pid 1, and stays so with this filter while its child does the rest
    hides_mounts: bool = False  # needs CAP_SYS_ADMIN and CAP_SYS_CHROOT, and drops them
    landlock: tuple[int, int, int, int] | None = None  # size of the attributes, files, network, scopes
    paths: list[PathRule] = field(default_factory=list)

    def encoded(self) -> bytes:
        records = [
            *((b"a", word) for word in self.argv),
            *((b"e", f"{name}={value}") for name, value in self.environment.items()),
            *((b"r", " ".join(map(str, limit))) for limit in self.limits),
            *((b"p", f"{rule.for_directory} {rule.for_file} {rule.path}") for rule in self.paths),
            (b"c", self.directory),
            (b"n", str(self.port or "")),
            (b"s", "1" if self.own_session else ""),
            (b"m", "1" if self.hides_mounts else ""),
            (b"x", f"{PROGRAM_FD} {OPEN_FILES[0]} {OPEN_FILES[1]}" if self.one_program else ""),
            (b"l", " ".join(map(str, self.landlock)) if self.landlock else ""),
        ]
        filters = _record(b"f", self.filter) + _record(b"i", self.init_filter)
        return b"".join(_record(tag, os.fsencode(value)) for tag, value in records) + filters


def _record(tag: bytes, value: bytes) -> bytes:
    return tag + struct.pack("<I", len(value)) + value


def memory_file(name: str, data: bytes) -> int:
    """A descriptor to hand down, at its beginning."""
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Launcher:
    """One launcher, from before it is started until the command runs."""

    def __init__(self, launch_spec: LaunchSpec) -> None:
        self.script = memory_file("launcher", SCRIPT)
        self.launch_spec = memory_file("orders", launch_spec.encoded())
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.given: dict[str, int] = {}
        self.failure: int | None = None

    @property
    def passed(self) -> list[int]:
        return [self.script, self.launch_spec, self.theirs.fileno()]

    @property
    def command(self) -> list[str]:
        return [PERL, f"/proc/self/fd/{self.script}", str(self.launch_spec), str(self.theirs.fileno())]

    def started(self) -> None:
        """Our copies of what was handed down would keep the other side from seeing an end."""
        os.close(self.script)
        os.close(self.launch_spec)
        self.theirs.close()

    def wait_until_ready(self, process: subprocess.Popen[bytes], give_up: Callable[[], bool]) -> bool:
        """True: it waits for `go`, and `given` holds the descriptors it made (`notices`, `port`). False: it has ended,
        could not find the command, or `give_up` said so. Raises SandboxFailed when nothing happens at all.
        """
        end = time.monotonic() + START_SECONDS
        poll = select.poll()
        poll.register(self.ours, select.POLLIN)
        while time.monotonic() < end and not give_up():
            if poll.poll(50):
                text, descriptors, _, _ = socket.recv_fds(self.ours, 64, 1)
                self.given.update({text.decode(): descriptor for descriptor in descriptors})
                if text == b"ready":
                    return True
                if not self._understood(text):
                    return False
            elif process.poll() is not None:
                return False
        if give_up():
            return False
        raise SandboxFailed(f"The sandbox was not ready within {START_SECONDS:.0f} seconds.")

    def _understood(self, text: bytes) -> bool:
        if text.startswith(b"failed "):
            self.failure = int(text.split()[1])
        return text in (b"notices", b"port")

    def last_word(self) -> int | None:
        """The errno for which the command could not be started, if it could not."""
        with contextlib.suppress(OSError):
            self.ours.settimeout(0)
            self._understood(self.ours.recv(64))
        return self.failure

    def go(self) -> None:
        with contextlib.suppress(OSError):  # it died a moment ago: whoever waits for its end sees that
            self.ours.send(b"go")

    def take(self, name: str) -> int:
        """Returns the descriptor of that name, which is the caller's to close from then on."""
        return self.given.pop(name)

    def close(self) -> None:
        """Close the connection, and what the launcher gave and no caller took: it may end before its "ready"."""
        self.ours.close()
        while self.given:
            os.close(self.given.popitem()[1])
