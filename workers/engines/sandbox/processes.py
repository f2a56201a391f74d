"""Reads live processes from /proc, and signals them without ever reaching a later process of the same pid."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_LARGEST_STATUS = 1 << 14  # bytes: `stat` and `status` are complete within one read
HIDDEN = "hidden"  # instead of the name of a namespace that we may not read
# For the death of killed processes. They need processor time for it, which a loaded machine gives them late. A run that
# does not wait for it would report a failure of the sandbox, whatever the command's own end was.
DEATH_SECONDS = 30.0


@dataclass(frozen=True)
class HostProcess:
    """One process. `born` (clock ticks since boot) distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    born: int
    state: str
    threads: int = 1

    @property
    def is_alive(self) -> bool:
        """Report whether it runs. A process whose first thread has ended looks like a zombie while others live."""
        return self.state not in "ZX" or self.threads > 1


def read(pid: int) -> HostProcess | None:
    """Return the process of this pid, or None."""
    line = _read(f"/proc/{pid}/stat")
    # The name between the parentheses may hold anything, parentheses too.
    fields = line[line.rfind(b")") + 2 :].split()
    if not fields:
        return None
    return HostProcess(pid, int(fields[1]), int(fields[19]), fields[0].decode(), int(fields[17]))


def _read(path: str) -> bytes:
    """Return the content of a small file of /proc, or nothing for a process that has ended.

    It is done for every process of the machine, and `pathlib` takes three times as long.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _LARGEST_STATUS)
    except OSError:  # it ended after the open
        return b""
    finally:
        os.close(descriptor)


def _pids() -> list[int]:
    with os.scandir(PROC) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit()]


def has_ended(child: int, *, within: float = 0.0) -> bool:
    """Report whether a child of ours ends within so many seconds, without reaping it."""
    handle = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(within * 1000))
    finally:
        os.close(handle)


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of an ended, unreaped process and of all children that it waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else None


def all_processes() -> list[HostProcess]:
    """Return all processes but zombies."""
    return [process for pid in _pids() if (process := read(pid)) and process.is_alive]


def descendants(root: int) -> list[HostProcess]:
    """Return the children of `root`, their children, and so on; without `root` itself."""
    children: dict[int, list[HostProcess]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found, open_ends = [], [root]
    while open_ends:
        below = children.get(open_ends.pop(), [])
        found += below
        open_ends += [process.pid for process in below]
    return found


def send(process: HostProcess, number: signal.Signals) -> None:
    """Signal exactly this process, or none if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read(process.pid)
        if now and now.born == process.born:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(handle)


def of_uid(uid: int) -> list[int]:
    """Return the pids of live processes with this real or effective uid."""
    wanted = str(uid).encode()
    found = []
    for pid in _pids():
        status = _read(f"/proc/{pid}/status")
        start = status.find(b"\nUid:")
        # The process may be a zombie: its state is looked at last, because few processes have the uid.
        if wanted in status[start + 5 : status.find(b"\n", start + 5)].split()[:2]:
            process = read(pid)
            if process and process.is_alive:
                found.append(pid)
    return found


def foreign_process(uid: int) -> int | None:
    """Return a process of this uid that another worker started, one in another network namespace than ours.

    What a killed worker of this network namespace left has no such process: the first process of the uid in a process
    tree is the tracer, bwrap or the launcher, which stays in the network namespace of its worker.
    """
    ours = _network_namespace("self")
    found = {process.pid: process for pid in of_uid(uid) if (process := read(pid))}
    tops = (process.pid for process in found.values() if process.parent not in found)
    return next((pid for pid in tops if _network_namespace(pid) not in (ours, None)), None)


def other_worker_has_name(name: str, inode: int) -> bool:
    """Report whether a worker of another network namespace has a socket of this name (abstract ones begin with `@`).

    Only namespaces with a process of our own account are looked at: a job may give any name to a socket of its sandbox.
    Workers outside of our process namespace are not found. `kill_uid` does not reach their jobs; but a worker outside,
    which sees ours, reaches those of ours.

    Args:
        name: The name.
        inode: The socket that we gave this name.
    """
    looked_at = set()
    for pid in of_uid(os.geteuid()):
        namespace = _network_namespace(pid)
        if namespace not in looked_at:
            with contextlib.suppress(OSError):  # it has ended: another process of the namespace may show the names
                sockets = (PROC / str(pid) / "net/unix").read_text("utf-8", "replace")
                if namespace != HIDDEN:  # of a process with more rights than ours: each may have another one
                    looked_at.add(namespace)
                # Address, references, protocol, flags, type, state, inode, and the name of those that have one.
                rows = (line.split(maxsplit=7) for line in sockets.splitlines())
                if any(row[7:] == [name] and row[6] != str(inode) for row in rows):
                    return True
    return False


def _network_namespace(pid: int | str) -> str | None:
    """Return the namespace's name, or None for a process that has ended."""
    try:
        return str((PROC / str(pid) / "ns/net").readlink())
    except PermissionError:
        return HIDDEN
    except OSError:
        return None


def kill_uid(uid: int, *, within: float = DEATH_SECONDS) -> bool:
    """Kill everything that runs under a slot's uid, which no other user has.

    `kill -1`, run as that uid, reaches all of its processes at once, so that a fork bomb cannot outrun it. It must
    never run as root: there it would end the machine.

    Returns:
        Whether no process is left.
    """
    if uid == 0:
        raise ValueError("the uid of a slot is never 0")
    end = time.monotonic() + within
    while of_uid(uid):
        if time.monotonic() > end:
            return False
        as_slot = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        script = f'[ "$(id -ru)" = {uid} ] && [ "$(id -u)" = {uid} ] && kill -KILL -1'
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = [*as_slot, "/bin/sh", "-c", script]
            subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, check=False, timeout=max(end - time.monotonic(), 1))
    return True


def memory_of(processes: Iterable[HostProcess]) -> int:
    """Return the bytes of anonymous and shared memory of these processes, without the pages of files."""
    total = 0
    for process in processes:
        for line in _read(f"/proc/{process.pid}/status").split(b"\n"):
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) << 10
    return total


def tasks_of_uid(uid: int) -> int:
    """Return how many tasks the kernel counts against this uid's limit: those in our own user namespace."""
    ours = (PROC / "self/ns/user").readlink()
    return threads_of(process for pid in of_uid(uid) if _in_namespace(pid, ours) and (process := read(pid)))


def _in_namespace(pid: int, ours: Path) -> bool:
    try:
        return (PROC / str(pid) / "ns/user").readlink() == ours
    except OSError:  # a process outside of our namespace may not be read
        return False


def threads_of(processes: Iterable[HostProcess]) -> int:
    """Return the number of their threads."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process.pid}/task") as entries:
            total += sum(1 for _ in entries)
    return total
