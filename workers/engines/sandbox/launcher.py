"""Starts `launcher.pl`, the last program before the command, and exchanges messages with it."""

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
PROGRAM_FD = OPEN_FILES[1] - 1  # the descriptor of the only program when allow_exec is false
RLIMIT_DATA, RLIMIT_NPROC = 2, 6
_NO_END = b"\xff" * 4  # no status of a process


@dataclass(frozen=True)
class PathRule:
    """A Landlock rule: rights below a directory, rights on a file. A path that does not exist has no rule."""

    for_directory: int
    for_file: int
    path: str


@dataclass
class LaunchSpec:
    """The instructions for the launcher, in the order in which it carries them out."""

    argv: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    filter: bytes
    port: int | None = None
    one_program: bool = False
    own_session: bool = False
    limits: list[tuple[int, int, int]] = field(default_factory=list)
    init_filter: bytes = b""  # not empty: the launcher is pid 1, with this filter; its child does the rest
    hides_mounts: bool = False  # needs CAP_SYS_ADMIN and CAP_SYS_CHROOT, and drops them
    root: str = ""  # with `hides_mounts`: the directory that becomes the root of the command
    has_errors: bool = False  # stderr of the command is not its stdout
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
            (b"o", self.root),
            (b"d", "1" if self.has_errors else ""),
            (b"x", f"{PROGRAM_FD} {OPEN_FILES[0]} {OPEN_FILES[1]}" if self.one_program else ""),
            (b"l", " ".join(map(str, self.landlock)) if self.landlock else ""),
        ]
        filters = _record(b"f", self.filter) + _record(b"i", self.init_filter)
        return b"".join(_record(tag, os.fsencode(value)) for tag, value in records) + filters


def _record(tag: bytes, value: bytes) -> bytes:
    return tag + struct.pack("<I", len(value)) + value


def _in_shell(code: int) -> int:
    return code if code >= 0 else 128 - code


def memory_file(name: str, data: bytes) -> int:
    """Return the descriptor of an anonymous file with this content, positioned at its start."""
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Launcher:
    """One launcher, from before its start until the command runs."""

    def __init__(self, launch_spec: LaunchSpec) -> None:
        self.script = memory_file("launcher", SCRIPT)
        self.launch_spec = memory_file("spec", launch_spec.encoded())
        self.end = memory_file("end", _NO_END + bytes(4096 - len(_NO_END)))  # pid 1 and the kernel write into it
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.given: dict[str, int] = {}
        self.failure: int | None = None

    @property
    def passed(self) -> list[int]:
        return [self.script, self.launch_spec, self.theirs.fileno(), self.end]

    @property
    def command(self) -> list[str]:
        return [PERL, f"/proc/self/fd/{self.script}", str(self.launch_spec), str(self.theirs.fileno()), str(self.end)]

    def started(self) -> None:
        """Close our copies of the descriptors that the launcher inherited: they would hide its end."""
        os.close(self.script)
        os.close(self.launch_spec)
        self.theirs.close()

    def wait_until_ready(self, process: subprocess.Popen[bytes], give_up: Callable[[], bool]) -> bool:
        """Wait until the launcher is ready to start the command.

        Args:
            process: The first process of the sandbox.
            give_up: Whether to stop waiting.

        Returns:
            Whether it waits for `go`; then `given` holds the descriptors that it made (`mounts`, `notices`, `port`).
                False: it has ended, could not find the command, or `give_up` returned true.

        Raises:
            SandboxFailed: The launcher did not answer in time.
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
                if not self._handle_message(text):
                    return False
            elif process.poll() is not None:
                return False
        if give_up():
            return False
        raise SandboxFailed(f"The sandbox was not ready within {START_SECONDS:.0f} seconds.")

    def _handle_message(self, text: bytes) -> bool:
        if text.startswith(b"failed "):
            self.failure = int(text.split()[1])
        return text in (b"mounts", b"notices", b"port")

    def start_error(self) -> int | None:
        """Return the errno for which the command could not be started, or None.

        The launcher may have ended between two polls of `wait_until_ready`, so several messages may be unread.
        """
        with contextlib.suppress(OSError):
            self.ours.settimeout(0)
            while text := self.ours.recv(64):
                self._handle_message(text)
        return self.failure

    def exact(self, code: int | None) -> int | None:
        """Return the end of the command as `subprocess` does: exit code, or the negative number of a signal.

        Args:
            code: The same from the sandbox, which cannot distinguish a signal from an exit code above 128.
        """
        status = os.pread(self.end, len(_NO_END), 0)
        recorded = None if status == _NO_END else os.waitstatus_to_exitcode(struct.unpack("=i", status)[0])
        # Pid 1 waits for all children. The last one was the command if pid 1 has ended with it.
        is_same = recorded is not None and code is not None and _in_shell(recorded) == _in_shell(code)
        return recorded if is_same else code

    def go(self) -> None:
        with contextlib.suppress(OSError):  # it has just died: the supervisor sees its end
            self.ours.send(b"go")

    def take(self, name: str) -> int:
        """Return the descriptor of this name. The caller closes it."""
        return self.given.pop(name)

    def close(self) -> None:
        """Close the connection, and the descriptors that no caller took: the launcher may end before it is ready."""
        self.ours.close()
        os.close(self.end)
        while self.given:
            os.close(self.given.popitem()[1])
