"""Restores the caches of a `steps` job before its first step, and saves them after its last one.

Archives are packed and unpacked by `tar` in the sandbox, with the limits and the account of the job. An archive is
written by code of strangers: its links and names reach what a step reaches, and nothing of the worker. A cache is a
help, so no error of one ends a job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import posixpath
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol, Self

from workers.agent.errors import AgentError, LeaseRejected
from workers.agent.http.wire import CacheDownload, CachePayload
from workers.agent.object_transfer import ObjectTransfer, open_below
from workers.agent.retry import RetryBudget, retry
from workers.agent.sanitize import one_line
from workers.engines.contract import Engine, EngineUnavailable, RunSpec, SandboxFailed, StopSignal, TraceLevel

logger = logging.getLogger(__name__)

RESTORE_SECONDS = 300.0
SAVE_SECONDS = 240.0  # after 600 for artifacts: the server fails a job that uploads for longer than 900
MESSAGE_SECONDS = 30.0  # in which an unreachable server is tried again
HOME = "~/"
_NOTHING = 3  # the exit code of PACK without any file
# A path that does not exist is left out: tar would fail as it does on a full disk, and an archive that is cut off must
# not be stored.
PACK = """
archive=$1; shift
for path; do shift; if [ -e "$path" ] || [ -L "$path" ]; then set -- "$@" "$path"; fi; done
[ $# -gt 0 ] || exit 3
exec tar --create --use-compress-program='gzip -1' --file="$archive" -- "$@"
"""
UNPACK = 'exec tar --extract --gzip --no-same-owner --file="$1"'


class CacheClient(Protocol):
    """The messages about caches of one lease."""

    over: threading.Event

    def restore_cache(self, key: str, version: str) -> CacheDownload | None:
        """Return the cache entry of the key and version, or None."""

    def save_cache(self, key: str, version: str, size_bytes: int) -> str | None:
        """Announce a cache entry, and return the address of its upload; None if there is one."""


@dataclass(frozen=True)
class CachePart:
    """The paths of a cache below one directory: the home or the working directory. They are one archive."""

    key: str
    in_home: bool
    paths: tuple[str, ...]

    @property
    def version(self) -> str:
        """Return the digest of the paths. An archive of other paths is another entry of the same key."""
        named = sorted((HOME if self.in_home else "") + path for path in self.paths)
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def parts_of(cache: CachePayload) -> list[CachePart]:
    """Return the parts of a cache.

    A path that begins with `~/` is in the home, every other one in the working directory. A path that leaves its
    directory, or is the whole of it, is skipped.
    """
    home: list[str] = []
    work: list[str] = []
    for path in cache.paths:
        in_home = path.startswith(HOME)
        relative = posixpath.normpath(path.removeprefix(HOME))
        if relative in {".", "..", "~"} or relative.startswith(("/", "../")):
            logger.warning("cache path skipped path=%r", one_line(path))
        else:
            (home if in_home else work).append(relative)
    found = ((in_home, tuple(dict.fromkeys(paths))) for in_home, paths in ((True, home), (False, work)))
    return [CachePart(cache.key, in_home, paths) for in_home, paths in found if paths]


class JobCaches:
    """The caches of one job. `spec` is that of a step without its line."""

    def __init__(
        self, client: CacheClient, engine: Engine, spec: RunSpec, stop: StopSignal, caches: Sequence[CachePayload]
    ) -> None:
        self._client, self._engine, self._stop = client, engine, stop
        self._spec = replace(spec, environment={}, trace=TraceLevel.NONE)  # the job's variables are for its steps
        self._caches = [(cache, parts_of(cache)) for cache in caches]
        self._restored: set[CachePart] = set()

    def restore_all(self) -> None:
        """Restore what the server has.

        Raises:
            LeaseRejected: The lease is no longer valid.
        """
        transfer = ObjectTransfer(self._client.over, self._stop.requested.is_set, RESTORE_SECONDS)
        for _, part in self._parts():
            with _logged("restored", part):
                if self._restore(part, transfer):
                    self._restored.add(part)

    def has_unsaved(self) -> bool:
        """Return whether `save_all` has something to do."""
        return any(self._is_unsaved(cache, part) for cache, part in self._parts())

    def save_all(self) -> None:
        """Save every cache that was not restored and is not read-only.

        Raises:
            LeaseRejected: The lease is no longer valid.
        """
        transfer = ObjectTransfer(self._client.over, self._stop.requested.is_set, SAVE_SECONDS)
        for cache, part in self._parts():
            if self._is_unsaved(cache, part):
                with _logged("saved", part):
                    self._save(part, transfer)

    def results(self) -> list[dict[str, Any]]:
        """Return the use of each cache, for the final result."""
        return [
            {
                "type": cache.type,
                "key": cache.key,
                "hit": bool(parts) and self._restored.issuperset(parts),
                "read_only": cache.read_only,
            }
            for cache, parts in self._caches
        ]

    def _parts(self) -> Iterator[tuple[CachePayload, CachePart]]:
        return ((cache, part) for cache, parts in self._caches for part in parts)

    def _is_unsaved(self, cache: CachePayload, part: CachePart) -> bool:
        return not cache.read_only and part not in self._restored

    def _restore(self, part: CachePart, transfer: ObjectTransfer) -> bool:
        transfer.require_time()
        found = retry(
            lambda: self._client.restore_cache(part.key, part.version),
            budget=RetryBudget(self._client.over, MESSAGE_SECONDS),
        )
        if found is None:
            return False
        with _Archive(self._spec.workspace, self._engine.owner(self._spec.slot)) as archive:
            with archive.create() as file:
                transfer.get(found.url, file, found.size_bytes, found.sha256)
            code = self._run(UNPACK, archive.name, part, (), transfer)
        if code != 0:
            raise OSError(f"the archive could not be unpacked: exit code {code}")
        return True

    def _save(self, part: CachePart, transfer: ObjectTransfer) -> None:
        transfer.require_time()
        with _Archive(self._spec.workspace, None) as archive:
            code = self._run(PACK, archive.name, part, part.paths, transfer)
            if code == _NOTHING:
                return
            if code != 0:
                raise OSError(f"the archive could not be packed: exit code {code}")
            with open_below(self._spec.workspace, archive.name) as file:
                size = os.fstat(file.fileno()).st_size
                url = retry(
                    lambda: self._client.save_cache(part.key, part.version, size),
                    budget=RetryBudget(self._client.over, MESSAGE_SECONDS),
                )
                if url is not None:
                    transfer.put(url, file, size)

    def _run(
        self, script: str, archive: str, part: CachePart, paths: Sequence[str], transfer: ObjectTransfer
    ) -> int | None:
        """Run a script in the sandbox, in the directory of the paths. Returns the exit code."""
        mounts = self._engine.mount_points(self._spec)
        within = 'cd "$HOME" && {\n' + script + "\n}" if part.in_home else script
        spec = replace(
            self._spec,
            argv=("sh", "-c", within, "sh", f"{mounts.workspace}/{archive}", *paths),
            working_directory="." if part.in_home else self._spec.working_directory,
            timeout_seconds=max(transfer.seconds_left(), 1.0),
        )
        result = self._engine.run(spec, output=_ignore, trace=_ignore, stop=self._stop)
        return result.exit_code if result.kind == "exited" else None


class _Archive:
    """A file of a random name in the workspace, removed at the end."""

    def __init__(self, workspace: Path, owner: int | None) -> None:
        self.name = f".cache-{secrets.token_hex(16)}.tar.gz"
        self._path, self._owner = workspace / self.name, owner

    def create(self) -> IO[bytes]:
        """Create the file for the account of the job. The name cannot exist, and a link is not followed."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._owner is not None:
            os.fchown(handle, self._owner, self._owner)
        return os.fdopen(handle, "wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


@contextlib.contextmanager
def _logged(action: str, part: CachePart) -> Iterator[None]:
    """Log an error that costs the job one cache. A lost lease is raised."""
    try:
        yield
    except LeaseRejected:
        raise
    except (AgentError, OSError, EngineUnavailable, SandboxFailed) as error:
        logger.warning("cache not %s key=%r error=%r", action, one_line(part.key), one_line(error))


def _ignore(_: bytes) -> None:
    """Drop the output of tar."""
