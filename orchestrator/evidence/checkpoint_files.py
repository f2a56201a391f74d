"""Copies of checkpoints in the folder CHECKPOINT_DIR, from where an operator takes them off the machine.

A file is written after the commit of its checkpoint. A checkpoint of which no file could be written keeps waiting.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from django.conf import settings

from orchestrator.evidence.chain_models import INSTALLATION, Checkpoint
from runtime_jobs.db_time import database_now
from runtime_jobs.secret_files import private_file

MAX_FILES: Final = 500  # of one call
INSTALLATION_FOLDER: Final = "_installation"  # no slug begins so
_SUFFIX: Final = ".dsse.json"


@dataclass(frozen=True)
class CheckpointFile:
    """A file of CHECKPOINT_DIR. `sha256` is the digest of the payload in it, None if it has none."""

    org_slug: str
    number: int
    path: Path
    sha256: str | None


def file_of(org_slug: str, number: int) -> Path:
    """Return the path of the copy of a checkpoint."""
    folder = INSTALLATION_FOLDER if org_slug == INSTALLATION else org_slug
    return Path(settings.CHECKPOINT_DIR, folder, f"{number:08d}{_SUFFIX}")


def file_checkpoints() -> int:
    """Write the files that are missing, the oldest first. Returns how many.

    A file that is there already is never replaced: it is the copy that shows a change of the database.

    Raises:
        OSError: The folder cannot be written. What was written before is noted.
    """
    waiting = Checkpoint.objects.filter(filed_at=None).order_by("pk")[:MAX_FILES]
    number = 0
    for checkpoint in waiting:
        _write(file_of(checkpoint.org_slug, checkpoint.number), orjson.dumps(checkpoint.envelope) + b"\n")
        Checkpoint.objects.filter(pk=checkpoint.pk).update(filed_at=database_now())
        number += 1
    return number


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with private_file(draft) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike a rename, a link replaces no file
        except FileExistsError:
            return
        _flush_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_files() -> Iterator[CheckpointFile]:
    """Yield the files of CHECKPOINT_DIR, of each organization in the order of their numbers."""
    for path in sorted(Path(settings.CHECKPOINT_DIR).glob(f"*/*{_SUFFIX}")):
        digits = path.name.removesuffix(_SUFFIX)
        if path.name.startswith(".") or not digits.isdecimal():
            continue
        slug = INSTALLATION if path.parent.name == INSTALLATION_FOLDER else path.parent.name
        yield CheckpointFile(slug, int(digits), path, _payload_digest(path.read_bytes()))


def _payload_digest(content: bytes) -> str | None:
    try:
        payload = base64.b64decode(orjson.loads(content)["payload"], validate=True)
    except (KeyError, TypeError, ValueError):  # also what is no JSON, and no base64
        return None
    return hashlib.sha256(payload).hexdigest()
