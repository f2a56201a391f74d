"""`manage.py backup`: writes a dump of the database that `manage.py restore` reads."""

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.management import client_programs


class Command(BaseCommand):
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
            client_programs.run("pg_dump", "--format=custom", f"--file={draft}")
            draft.rename(file)
        except OSError as error:
            raise CommandError(f"cannot write {file}: {error.strerror}.") from None
        except client_programs.ClientProgramError as error:
            raise CommandError(str(error)) from None
        finally:
            draft.unlink(missing_ok=True)
        size = file.stat().st_size
        self.stdout.write(f"{file}: {size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{file}: {size:,} bytes")
        key = settings.STATE_DIR / "secret_key"
        if not (os.environ.get("SECRET_KEY") or os.environ.get("SECRET_KEY_FILE")):
            self.stdout.write(f"Keep a copy of {key} with it: webhook secrets are unreadable without that key.")
