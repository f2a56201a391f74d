"""`manage.py rundispatcher`: sends events to webhooks, and notifications. Any number may run."""

import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from orchestrator.management.base import ServerCommand
from orchestrator.processes.dispatcher import DispatcherProcess

MAX_CONNECTIONS = 5000


class Command(ServerCommand):
    """Runs a dispatcher process."""

    help = "Sends events to webhooks, and notifications by webhook or mail. Any number may run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--connections",
            type=int,
            default=settings.DISPATCHER_CONNECTIONS,
            help="Deliveries that are sent at a time.",
        )
        parser.add_argument("--once", action="store_true", help="Send what is due, and exit.")

    def handle(self, *_: Any, **options: Any) -> None:
        if not 1 <= options["connections"] <= MAX_CONNECTIONS:
            text = f"--connections={options['connections']}: a number from 1 to {MAX_CONNECTIONS} is needed."
            raise CommandError(text)
        process = DispatcherProcess(connections=options["connections"])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.stop())
        self.stdout.write(f"dispatcher {process.name} is running")
        if options["once"]:
            self.stdout.write(f"{process.run_due()} deliveries tried")
        else:
            process.run()
