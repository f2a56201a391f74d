"""Files that are received in parts: written under a random name, locked meanwhile, and moved when they are whole."""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from orchestrator.core.durable_files import DurableFileStorage, make_folder

PARTS: Final = "uploads"  # folder of parts that were received


class PartFileStorage(DurableFileStorage):
    """Files below one folder, of which incomplete ones are in a folder of their own.

    A process locks the files for which it has not committed a row yet. The kernel removes the lock with the process.
    """

    def create_part(self) -> tuple[str, IO[bytes]]:
        """Return the name of a new empty file for a part, and the file. It is locked while it is open."""
        while True:
            name = f"{PARTS}/{secrets.token_hex(16)}"
            path = Path(self.path(name))
            make_folder(path.parent)
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            if path.exists():  # else collection found it before it was locked
                return name, file
            file.close()

    def remove(self, name: str) -> None:
        """Delete a file. It may be missing."""
        with contextlib.suppress(FileNotFoundError):
            Path(self.path(name)).unlink()

    def remove_unless(self, name: str, is_needed: Callable[[], bool]) -> bool:
        """Delete a file that no process has locked, unless it is needed. Return whether it was deleted.

        Args:
            name: The file.
            is_needed: Asks the database. It is called under the lock, so no process is about to commit a row.
        """
        try:
            file = Path(self.path(name)).open("rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if is_needed():
                return False
            self.remove(name)
        return True

    def files(self, folder: str) -> Iterator[tuple[str, float]]:
        """Yield the name of each file below a folder, and its age in seconds.

        One folder is read at a time: a million names together would take hundreds of megabytes.
        """
        now = time.time()
        for parent, folders, names in os.walk(self.path(folder)):
            folders.sort()
            for path in (Path(parent, name) for name in sorted(names)):
                with contextlib.suppress(FileNotFoundError):
                    yield path.relative_to(self.location).as_posix(), now - path.stat().st_mtime
