"""`manage.py runhousekeeping`: executes slow tasks, such as copies of repositories. Any number may run."""

import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from orchestrator.management.base import ServerCommand
from orchestrator.processes.housekeeping import HousekeepingProcess

MAX_THREADS = 64


class Command(ServerCommand):
    """Runs a housekeeping process."""

    help = "Executes slow tasks: mirrors of repositories, stored logs, schedules, retention. Any number may run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--threads", type=int, default=settings.HOUSEKEEPING_THREADS, help="Tasks that are executed at a time."
        )
        parser.add_argument("--once", action="store_true", help="Execute the tasks that are due, and exit.")

    def handle(self, *_: Any, **options: Any) -> None:
        if not 1 <= options["threads"] <= MAX_THREADS:
            raise CommandError(f"--threads={options['threads']}: a number from 1 to {MAX_THREADS} is needed.")
        process = HousekeepingProcess(threads=options["threads"])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.stopping.set())
        self.stdout.write(f"housekeeping {process.name} is running")
        if options["once"]:
            self.stdout.write(f"{process.run_due()} tasks executed")
        else:
            process.run()
