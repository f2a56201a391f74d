"""`manage.py runclock`: runs the scheduler process. Several may run; one leads, the others stand by."""

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from orchestrator.management.base import ServerCommand
from orchestrator.processes.scheduler import Scheduler


class Command(ServerCommand):
    """Runs the scheduler process."""

    help = "Runs the scheduler: expiry, timeouts, limits, retention. Several may run; one leads."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--period", type=float, default=settings.CLOCK_PERIOD_SECONDS, help="Seconds between rounds."
        )
        parser.add_argument("--once", action="store_true", help="Run one round and exit.")

    def handle(self, *_: Any, **options: Any) -> None:
        scheduler = Scheduler(period=options["period"])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: scheduler.stopping.set())
        self.stdout.write(f"scheduler {scheduler.name} is running")
        scheduler.run(once=options["once"])
