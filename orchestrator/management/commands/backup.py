"""`manage.py backup`: writes a dump of the database that `manage.py restore` reads."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.storage import storages
from django.core.management.base import CommandError, CommandParser

from orchestrator.artifacts.storage import ARTIFACTS
from orchestrator.core.sealing import ROOT_KEY_FILE
from orchestrator.management import client_programs
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Dumps the database."""

    help = "Writes a dump of the database to FILE, while everything runs. `restore` reads it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="must not exist; gets mode 0600")

    def handle(self, *_: Any, **options: Any) -> None:
        file: Path = options["file"]
        if file.exists():
            raise CommandError(f"{file} exists: name another file, or remove it first.")
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            draft.touch(mode=0o600, exist_ok=False)
            seconds = settings.SNAPSHOT_SECONDS
            client_programs.run("pg_dump", "--format=custom", f"--file={draft}", max_seconds=seconds)
            draft.rename(file)
        except OSError as error:
            raise CommandError(f"cannot write {file}: {error.strerror}.") from None
        except client_programs.ClientProgramError as error:
            raise CommandError(str(error)) from None
        finally:
            draft.unlink(missing_ok=True)
        size = file.stat().st_size
        self.stdout.write(f"{file}: {size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{file}: {size:,} bytes")
        for hint in _hints():
            self.stdout.write(hint)


def _hints() -> Iterator[str]:
    """Yield what the dump does not contain and a restore needs. Mirrors of repositories are copied again."""
    keys = {
        "SECRET_KEY": ("secret_key", "webhook secrets"),
        "ACTIONS_ROOT_KEY": (ROOT_KEY_FILE, "secrets of workflows"),
    }
    for name, (file, what) in keys.items():
        path = settings.STATE_DIR / file
        if not (os.environ.get(name) or os.environ.get(f"{name}_FILE")) and path.exists():
            yield f"Keep a copy of {path} with it: {what} are unreadable without that key."
    if not settings.SIGNING_KEY and _has_files(Path(settings.SIGNING_KEY_DIR)):
        folder = settings.SIGNING_KEY_DIR
        yield f"Keep a copy of {folder} in another place: without these keys a restored server signs with a new one."
    names = {"outputs": "outputs of jobs", "images": "images", ARTIFACTS: "artifacts, caches and logs of workflows"}
    folders = {what: getattr(storages[name], "location", None) for name, what in names.items()}  # a bucket has none
    found = [f"{path} ({what})" for what, path in folders.items() if path and _has_files(Path(path))]
    if found:
        yield f"Copy these folders after the dump: {', '.join(found)}."


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
