"""`manage.py audit`: is everything as it must be? Prints what is broken, exits 1 if anything is."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from orchestrator.audit.invariants import INVARIANTS
from orchestrator.audit.runner import run_audit


class Command(BaseCommand):
    help = "Checks every invariant of jobs, leases and events on the live database; exits 1 if one is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--chains", action="store_true", help="Also compute the hash of every event again.")

    def handle(self, *_: Any, **options: Any) -> None:
        findings = run_audit(chains=options["chains"])
        for finding in findings:
            self.stdout.write(str(finding))
        if findings:
            sys.exit(1)
        self.stdout.write(f"{len(INVARIANTS)} invariants hold.")
