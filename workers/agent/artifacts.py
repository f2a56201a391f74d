"""Names the files that a job has left on purpose. They are looked at and not kept: there is nowhere to bring them.

What a job leaves may be anything: links, pipes, a million files, names that are no text. Nothing is followed, nothing
that is not a file is opened, and every look has a limit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Any

from workers.agent.http.wire import PatternPayload

MAX_FILES = 256
MAX_BYTES = 1 << 30  # read for their digests, of all files together
MAX_REPORTED = 256 << 10  # of the names in the message, which has a megabyte
MAX_ENTRIES = 200_000
MAX_DEPTH = 64
SECONDS = 20.0


def find_artifacts(folder: Path, patterns: Sequence[PatternPayload]) -> dict[str, Any]:
    """`{"files": [{type, path, size_bytes, sha256}], "files_omitted": n}`, by path; empty where nothing was asked for.

    A pattern that fits a directory fits all in it. `**` stands for any number of directories."""
    if not patterns:
        return {}
    look = _Look([(pattern.type, _segments(pattern.path_glob)) for pattern in patterns])
    look.through(str(folder))
    return {"files": sorted(look.files, key=lambda file: str(file["path"])), "files_omitted": look.omitted}


@dataclass
class _Look:
    patterns: list[tuple[str, list[str | re.Pattern[str]]]]
    files: list[dict[str, Any]] = field(default_factory=list)
    omitted: int = 0
    read: int = 0
    said: int = 0

    def through(self, root: str) -> None:
        until = time.monotonic() + SECONDS
        for number, (path, parts) in enumerate(_walked(root)):
            if number >= MAX_ENTRIES or time.monotonic() > until:
                self.omitted += 1  # at least: nobody has looked any further
                return
            kind = next((kind for kind, pattern in self.patterns if _fits(pattern, parts)), None)
            if kind is not None:
                self._take(path, kind, "/".join(parts))

    def _take(self, path: str, kind: str, name: str) -> None:
        digest, size = self._digest(path)
        said = {"type": kind, "path": os.fsencode(name).decode("utf-8", "replace")[:1024], "size_bytes": size}
        self.said += len(json.dumps(said)) + 100
        if digest is None or len(self.files) >= MAX_FILES or self.said > MAX_REPORTED:
            self.omitted += 1
        else:
            self.files.append(said | {"sha256": digest})

    def _digest(self, path: str) -> tuple[str | None, int]:
        """SHA-256 and size of a file; no digest for what is none, or is too much to read."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None, 0
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            self.read += about.st_size
            if not stat.S_ISREG(about.st_mode) or self.read > MAX_BYTES:
                return None, 0
            return hashlib.file_digest(file, "sha256").hexdigest(), about.st_size


def _walked(root: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every file below `root` with the parts of its relative path; no link is one, and none is followed."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(root, ())]
    while waiting:
        place, above = waiting.pop()
        try:
            with os.scandir(place) as listed:
                entries = list(listed)
        except OSError:  # closed to us, or its name too long
            continue
        for entry in entries:
            parts = (*above, entry.name)
            if entry.is_dir(follow_symlinks=False) and len(parts) < MAX_DEPTH and parts != (".git",):
                waiting.append((entry.path, parts))
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, parts


def _segments(path_glob: str) -> list[str | re.Pattern[str]]:
    parts = [part for part in path_glob.split("/") if part not in {"", "."}]
    return [part if part == "**" else re.compile(translate(part)) for part in parts]


def _fits(pattern: Sequence[str | re.Pattern[str]], parts: Sequence[str]) -> bool:
    """Whether the pattern fits the path, or a directory above it."""
    at = {0}  # the places of the pattern where we may be
    for part in parts:
        at = _closed(pattern, at)
        if len(pattern) in at and pattern:
            return True
        at = {place + 1 for place in at if _takes(pattern, place, part)} | {
            place for place in at if place < len(pattern) and pattern[place] == "**"
        }
    return len(pattern) in _closed(pattern, at)


def _closed(pattern: Sequence[str | re.Pattern[str]], at: set[int]) -> set[int]:
    """`**` may stand for nothing."""
    reached = set(at)
    for place in range(len(pattern)):
        if place in reached and pattern[place] == "**":
            reached.add(place + 1)
    return reached


def _takes(pattern: Sequence[str | re.Pattern[str]], place: int, part: str) -> bool:
    segment = pattern[place] if place < len(pattern) else "**"
    return not isinstance(segment, str) and segment.fullmatch(part) is not None
