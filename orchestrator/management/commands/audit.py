"""`manage.py audit`: checks the invariants of the database."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.management.base import CommandError, CommandParser

from orchestrator.audit.invariants import INVARIANTS
from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.evidence.public_keys import InvalidPublicKey, read_public_key
from orchestrator.management.base import ServerCommand
from runtime_jobs.read_snapshot import SnapshotTimeout


class Command(ServerCommand):
    """Checks the invariants."""

    help = "Checks every invariant of jobs, leases and events. Prints the violations; exits 1 if there are any."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--chains",
            action="store_true",
            help="Also recompute the hash of every event, and verify checkpoints with their copies.",
        )
        parser.add_argument(
            "--key",
            action="append",
            type=Path,
            metavar="FILE",
            help="A public key (PEM) whose checkpoints count. Without one, the keys in the database are used.",
        )
        parser.add_argument(
            "--objects",
            action="store_true",
            help="Also look for each stored object and mirror, and open each sealed value.",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            findings = run_audit(chains=options["chains"], keys=_read_keys(options["key"]))
        except SnapshotTimeout as error:
            raise CommandError(str(error)) from None
        if options["objects"]:
            findings += audit_objects()
        for finding in findings:
            self.stdout.write(str(finding))
        if findings:
            sys.exit(1)
        self.stdout.write(f"{len(INVARIANTS)} invariants hold.")


def _read_keys(files: Sequence[Path] | None) -> list[Ed25519PublicKey] | None:
    if files is None:
        return None
    keys = []
    for file in files:
        try:
            keys.append(read_public_key(file.read_bytes()))
        except (OSError, InvalidPublicKey) as error:
            raise CommandError(f"--key {file}: {error}") from None
    return keys
