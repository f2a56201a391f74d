"""`manage.py runclock`: everything that time causes. Run as many as you like; one leads."""

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from orchestrator.clock import Clock


class Command(BaseCommand):
    help = "Expires leases, forces overdue cancels, ends what runs too long. Several may run; one leads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--period", type=float, default=settings.CLOCK_PERIOD_SECONDS, help="Seconds between rounds."
        )
        parser.add_argument("--once", action="store_true", help="One round, then end.")

    def handle(self, *_: Any, **options: Any) -> None:
        clock = Clock(period=options["period"])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: clock.stopping.set())
        self.stdout.write(f"clock {clock.name} is running")
        clock.run(once=options["once"])
