"""Finds the files that a job declared as artifacts, with their names and digests. `artifact_upload` stores them.

A job may leave anything: links, pipes, a million files, names that are no text. Nothing is followed, only regular files
are opened, and every search has a limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Any

from workers.agent.http.wire import PatternPayload

MAX_FILES = 256
MAX_BYTES = 1 << 30  # read for their digests, of all files together
MAX_REPORTED = 256 << 10  # of the names in the message, whose limit is 1 MiB
MAX_ENTRIES = 200_000  # files, directories and all else
MAX_PENDING = 20_000  # directories that were found and not yet searched: their paths take memory
MAX_DEPTH = 64
SECONDS = 20.0

# Why a file that a pattern matches is not among the files of the job, for its log.
REASONS = {
    "too_many_files": f"a job has at most {MAX_FILES} files",
    "too_large": f"the files of a job have at most {MAX_BYTES:,} bytes together",
    "unreadable": "the worker cannot read it as a file",
    "search_limit": f"the search ended after {MAX_ENTRIES:,} names or {SECONDS:g} s; there may be more",
    "directory_replaced": "a step has replaced the working directory",
    "name_refused": "the server does not accept the name",
}


def find_artifacts(
    folder: Path, patterns: Sequence[PatternPayload], reasons: Counter[str] | None = None
) -> dict[str, Any]:
    """Return the files that the patterns match.

    A pattern that matches a directory matches all in it. `**` matches any number of directories.

    Args:
        folder: The folder to search.
        patterns: The patterns.
        reasons: Receives the number of omitted files by reason, a key of `REASONS`.

    Returns:
        `{"files": [{type, path, size_bytes, sha256}], "files_omitted": n}`, by path; empty without patterns.
    """
    if not patterns:
        return {}
    search = _Search([(pattern.type, _segments(pattern.path_glob)) for pattern in patterns], reasons)
    search.run(str(folder))
    return {"files": sorted(search.files, key=lambda file: str(file["path"])), "files_omitted": search.omitted}


@dataclass
class _Search:
    patterns: list[tuple[str, list[str | re.Pattern[str]]]]
    reasons: Counter[str] | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    omitted: int = 0
    read: int = 0
    reported: int = 0

    def run(self, root: str) -> None:
        for path, parts in self._walk(root):
            artifact_type = next(
                (artifact_type for artifact_type, pattern in self.patterns if _fits(pattern, parts)), None
            )
            if artifact_type is not None:
                self._take(path, artifact_type, "/".join(parts))

    def _walk(self, root: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield every file below `root` with the parts of its relative path; links are skipped.

        A directory is read entry by entry: it may have millions.
        """
        until = time.monotonic() + SECONDS
        entries = 0
        pending: list[tuple[str, tuple[str, ...]]] = [(root, ())]
        while pending:
            place, parents = pending.pop()
            for entry in _entries(place):
                entries += 1
                if entries > MAX_ENTRIES or len(pending) >= MAX_PENDING or time.monotonic() > until:
                    self._omit("search_limit")  # at least: the search ends here
                    return
                parts = (*parents, entry.name)
                if entry.is_dir(follow_symlinks=False) and len(parts) < MAX_DEPTH and parts != (".git",):
                    pending.append((entry.path, parts))
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path, parts

    def _take(self, path: str, artifact_type: str, name: str) -> None:
        digest, size = self._digest(path)
        entry = {"type": artifact_type, "path": os.fsencode(name).decode("utf-8", "replace")[:1024], "size_bytes": size}
        self.reported += len(json.dumps(entry)) + 100
        if len(self.files) >= MAX_FILES or self.reported > MAX_REPORTED:
            self._omit("too_many_files")
        elif digest is None:
            self._omit("too_large" if self.read > MAX_BYTES else "unreadable")
        else:
            self.files.append(entry | {"sha256": digest})

    def _omit(self, reason: str) -> None:
        self.omitted += 1
        if self.reasons is not None:
            self.reasons[reason] += 1

    def _digest(self, path: str) -> tuple[str | None, int]:
        """Return SHA-256 and size of a file; no digest if it is no regular file, or too large."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None, 0
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            self.read += status.st_size
            if not stat.S_ISREG(status.st_mode) or self.read > MAX_BYTES:
                return None, 0
            return hashlib.file_digest(file, "sha256").hexdigest(), status.st_size


def _entries(place: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory; none if it is not readable, or its name is too long."""
    with contextlib.suppress(OSError), os.scandir(place) as listed:
        yield from listed


def _segments(path_glob: str) -> list[str | re.Pattern[str]]:
    parts = [part for part in path_glob.split("/") if part not in {"", "."}]
    return [part if part == "**" else re.compile(translate(part)) for part in parts]


def _fits(pattern: Sequence[str | re.Pattern[str]], parts: Sequence[str]) -> bool:
    """Report whether the pattern matches the path, or a directory above it."""
    positions = {0}  # the positions in the pattern that the path has reached
    for part in parts:
        positions = _closed(pattern, positions)
        if len(pattern) in positions and pattern:
            return True
        positions = {place + 1 for place in positions if _takes(pattern, place, part)} | {
            place for place in positions if place < len(pattern) and pattern[place] == "**"
        }
    return len(pattern) in _closed(pattern, positions)


def _closed(pattern: Sequence[str | re.Pattern[str]], positions: set[int]) -> set[int]:
    """Return the positions that are reached when `**` matches nothing."""
    reached = set(positions)
    for place in range(len(pattern)):
        if place in reached and pattern[place] == "**":
            reached.add(place + 1)
    return reached


def _takes(pattern: Sequence[str | re.Pattern[str]], place: int, part: str) -> bool:
    segment = pattern[place] if place < len(pattern) else "**"
    return not isinstance(segment, str) and segment.fullmatch(part) is not None
