"""The events of a job: the input of the rules and of the lists of the report."""

from __future__ import annotations

from dataclasses import dataclass

DENIED = frozenset({"EACCES", "EPERM", "EROFS"})


@dataclass(frozen=True, slots=True)
class FileEvent:
    """One use of a path.

    `path` is where it led to, `requested` what the call named; they differ behind a symbolic link. `ops`: of read,
    write, create, delete, rename, metadata. `mode`: the permission bits of the request.
    """

    path: str
    requested: str
    ops: frozenset[str]
    errno: str | None = None
    mode: int | None = None
    directory: bool = False

    @property
    def changes(self) -> bool:
        return self.ops != _READ


_READ = frozenset({"read"})


@dataclass(frozen=True, slots=True)
class ExecEvent:
    """A program was started, or tried. `unnamed`: from memory or a deleted file."""

    path: str
    argv: tuple[str, ...]
    errno: str | None = None
    unnamed: bool = False


@dataclass(frozen=True, slots=True)
class ContactEvent:
    """An address was contacted. `family`: inet, inet6, unix, other; `host` is an address, or a path for unix."""

    family: str
    host: str
    port: int | None
    errno: str | None


@dataclass(frozen=True, slots=True)
class LookupEvent:
    """A name was looked up, seen in the bytes sent to port 53."""

    name: str


@dataclass(frozen=True, slots=True)
class ProxyEvent:
    """A host was requested from the egress proxy. `verdict`: allowed, refused, unreachable."""

    name: str
    port: int
    verdict: str


@dataclass(frozen=True, slots=True)
class ListenEvent:
    """A socket listens for connections."""

    host: str
    port: int | None


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """A call that is reported by itself: ptrace, mount, kill, an unusual socket. `words`: its arguments."""

    call: str
    words: tuple[str, ...]
    errno: str | None


@dataclass(frozen=True, slots=True)
class DeathEvent:
    """A process was killed by a signal."""

    signal: str


@dataclass(frozen=True, slots=True)
class TraceCutEvent:
    """The trace grew past its limit; `size` is what it would have been, in bytes."""

    size: int


TraceEvent = (
    TraceCutEvent
    | FileEvent
    | ExecEvent
    | ContactEvent
    | LookupEvent
    | ProxyEvent
    | ListenEvent
    | AttemptEvent
    | DeathEvent
)
