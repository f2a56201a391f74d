"""Files and folders that are on the disk when a call returns, and survive a crash of the machine."""

import contextlib
import os
from pathlib import Path

from django.core.files.base import File
from django.core.files.storage import FileSystemStorage


class DurableFileStorage(FileSystemStorage):
    """Writes new files durably. It replaces no file.

    A name that is taken gets a random suffix. A write that ends in the middle leaves a file that no job names.
    """

    def _save(self, name: str, content: File) -> str:
        make_folder(Path(self.path(name)).parent)
        while True:
            target = Path(self.path(name))
            try:
                opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                name = self.get_available_name(name)
                continue
            try:
                with os.fdopen(opened, "wb") as file:
                    for chunk in content.chunks():
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    target.unlink()
                raise
            sync_folder(target.parent)
            return name


def make_folder(folder: Path) -> None:
    """Create a folder and those above it. The entry of each new folder is on the disk when this returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
