"""Listening sockets that outlive a process: the protocols `LISTEN_FDS` and `NOTIFY_SOCKET` of systemd.

A socket that another process holds too is never away: while no web process accepts, clients wait in its queue.
`sd_listen_fds(3)` and `sd_notify(3)` have the definitions.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

FIRST_DESCRIPTOR: Final = 3
VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class SocketActivationError(Exception):
    """Reports in one line that this process inherited something else than listening sockets."""


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that were passed to this process, and remove the variables that announce them.

    Raises:
        SocketActivationError: A descriptor is no listening socket.
    """
    given = {name: os.environ.pop(name, "") for name in VARIABLES}
    if given["LISTEN_PID"] != str(os.getpid()):
        return []  # none, or those of a parent that has left its variables
    descriptors = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(given["LISTEN_FDS"] or 0))
    return [_listening_socket(descriptor) for descriptor in descriptors]


def _listening_socket(descriptor: int) -> socket.socket:
    try:
        found = socket.socket(fileno=descriptor)
        is_listening = bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        is_listening = False
    if not is_listening:
        raise SocketActivationError(f"LISTEN_FDS: descriptor {descriptor} is no listening socket")
    found.set_inheritable(False)
    return found


@dataclass(frozen=True)
class PassedSockets:
    """Describes a child process that inherits sockets, for `subprocess.Popen`."""

    command: list[str]
    descriptors: list[int] = field(default_factory=list)


@contextlib.contextmanager
def passing(sockets: Sequence[socket.socket], command: Sequence[str]) -> Iterator[PassedSockets]:
    """Yield the command that passes the sockets on to `command`, and the descriptors that Popen must leave open.

    A shell sets `LISTEN_PID`, the number of the process that executes the command in its place. It is not `sh`, which
    may know descriptors of one digit only.
    """
    if not sockets:
        yield PassedSockets(list(command))
        return
    copies = _copies(sockets)
    redirections = " ".join(f"{FIRST_DESCRIPTOR + place}<&{copy} {copy}<&-" for place, copy in enumerate(copies))
    script = f'export LISTEN_PID=$$ LISTEN_FDS={len(copies)}; exec "$@" {redirections}'
    try:
        yield PassedSockets(["bash", "-c", script, "bash", *command], copies)
    finally:
        for copy in copies:
            os.close(copy)


def keep_over_exec(sockets: Sequence[socket.socket]) -> Mapping[str, str]:
    """Make this process keep the sockets when it executes a program, and return the variables that announce them."""
    copies = _copies(sockets)
    for place, copy in enumerate(copies):
        os.dup2(copy, FIRST_DESCRIPTOR + place, inheritable=True)
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(copies))}


def _copies(sockets: Sequence[socket.socket]) -> list[int]:
    """Return copies of the descriptors, above the numbers that they are about to have in another program."""
    above = FIRST_DESCRIPTOR + len(sockets)
    return [fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, above) for found in sockets]


def report_ready() -> None:
    """Report that this process accepts connections to the one that waits for it (`NOTIFY_SOCKET`), if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"READY=1", address.replace("@", "\0", 1) if address.startswith("@") else address)
