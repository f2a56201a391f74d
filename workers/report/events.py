"""What a job did, one small fact each: what the rules judge and the lists of the report count."""

from __future__ import annotations

from dataclasses import dataclass

DENIED = frozenset({"EACCES", "EPERM", "EROFS"})


@dataclass(frozen=True, slots=True)
class FileUse:
    """One use of a path. `path` is where it led to, `asked` what was asked for; they differ behind a symbolic link.

    `ops`: of read, write, create, delete, rename, metadata. `mode`: the permission bits that were asked for.
    """

    path: str
    asked: str
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
    """A program was started, or tried. `unnamed`: out of memory or a deleted file."""

    path: str
    argv: tuple[str, ...]
    errno: str | None = None
    unnamed: bool = False


@dataclass(frozen=True, slots=True)
class ContactEvent:
    """An address was spoken to. `family`: inet, inet6, unix, other; `host` is an address, or a path for unix."""

    family: str
    host: str
    port: int | None
    errno: str | None


@dataclass(frozen=True, slots=True)
class LookupEvent:
    """A name was asked for, seen in the bytes sent to port 53."""

    name: str


@dataclass(frozen=True, slots=True)
class Proxied:
    """The egress proxy was asked for a host. `verdict`: allowed, refused, unreachable."""

    name: str
    port: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Listening:
    host: str
    port: int | None


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """A call that means something by itself: ptrace, mount, kill, an unusual socket. `words`: its arguments."""

    call: str
    words: tuple[str, ...]
    errno: str | None


@dataclass(frozen=True, slots=True)
class DeathEvent:
    """A process was killed by a signal."""

    signal: str


@dataclass(frozen=True, slots=True)
class TraceCut:
    """The trace grew past its limit; `size` is what it would have been, in bytes."""

    size: int


TraceEvent = (
    TraceCut | FileUse | ExecEvent | ContactEvent | LookupEvent | Proxied | Listening | AttemptEvent | DeathEvent
)
