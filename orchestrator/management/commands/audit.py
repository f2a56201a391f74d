"""`manage.py audit`: checks the invariants of the database."""

import sys
from typing import Any

from django.core.management.base import CommandParser

from orchestrator.audit.invariants import INVARIANTS
from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Checks the invariants."""

    help = "Checks every invariant of jobs, leases and events. Prints the violations; exits 1 if there are any."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--chains", action="store_true", help="Also recompute the hash of every event.")
        parser.add_argument(
            "--objects",
            action="store_true",
            help="Also look for each stored object and mirror, and open each sealed value.",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        findings = run_audit(chains=options["chains"])
        if options["objects"]:
            findings += audit_objects()
        for finding in findings:
            self.stdout.write(str(finding))
        if findings:
            sys.exit(1)
        self.stdout.write(f"{len(INVARIANTS)} invariants hold.")
