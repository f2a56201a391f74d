"""`manage.py up`: runs server, scheduler, housekeeping, dispatcher and workers in the foreground, until interrupted."""

import os
import signal
import socket
import time
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.devtools import dev_server
from orchestrator.devtools.dev_server import DevServerError, ListenAddress
from orchestrator.devtools.process_supervisor import ProcessSupervisor, ProcessSupervisorError
from orchestrator.devtools.seed import SeedData
from orchestrator.management.base import ServerCommand
from runtime_jobs.control_characters import escape_controls

COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
MAX_WORKERS = 64


def number(name: str, value: object, *, maximum: int) -> int:
    """Return the value of a variable as a number from 0 to `maximum`.

    Raises:
        CommandError: The value is no such number; the message names the variable.
    """
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= maximum):
        raise CommandError(f"{name}={text!r}: a number from 0 to {maximum} is needed")
    return int(text)


def network_warning(address: ListenAddress) -> list[str]:
    """Return the warnings for a server that other machines reach and whose login was seeded."""
    lines = ["PLAIN HTTP: anybody on the network can read the password above and every token."]
    if not address.is_set_by_operator:
        lines.append("Other names of this server get status 400: allow them with ALLOWED_HOSTS=name,name.")
    return lines


class Command(ServerCommand):
    """Runs the whole installation."""

    help = "Serves until interrupted: all processes, and a PostgreSQL unless DATABASE_URL is set."

    def add_arguments(self, parser: CommandParser) -> None:
        environment = os.environ.get
        parser.add_argument("--host", default=environment("HOST") or "127.0.0.1")
        # `handle` parses the numbers: argparse would answer a bad one with its usage, or a traceback.
        parser.add_argument("--port", default=environment("PORT") or "8000", help="0: any free one")
        parser.add_argument("--workers", default=environment("WORKERS") or "1", help="0: none")

    def handle(self, *_: Any, **options: Any) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.colours: dict[str, str] = {}
        port = number("PORT", options["port"], maximum=65535)
        workers = number("WORKERS", options["workers"], maximum=MAX_WORKERS)
        try:
            with dev_server.state_dir_lock(settings.STATE_DIR):
                address, listener = dev_server.listen(options["host"], port)
                with listener:
                    self.run(address, listener, workers)
        except (DevServerError, ProcessSupervisorError) as error:
            raise CommandError(str(error)) from None

    def run(self, address: ListenAddress, listener: socket.socket, workers: int) -> None:
        """Start everything, print the welcome, and supervise until a signal arrives."""
        supervisor = ProcessSupervisor([dev_server.server(address, listener)], self.log_line)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_number, supervisor.request_stop)
        seed_data = dev_server.prepare()
        supervisor.processes += [dev_server.scheduler(address), dev_server.housekeeping(address)]
        supervisor.processes.append(dev_server.dispatcher(address))
        supervisor.processes += [
            dev_server.worker(address, *found) for found in dev_server.workers(range(1, workers + 1))
        ]
        runs_images = bool(workers) and os.geteuid() == 0  # images need volumes, and these need root
        if runs_images:
            images = dev_server.worker(
                address, *dev_server.image_worker(seed_data), engine="oci", pool=settings.RUNNER_POOL
            )
            supervisor.processes.append(images)
        try:
            for process in supervisor.processes:
                supervisor.start(process)
            dev_server.wait_until_ready(supervisor, address)
            if not supervisor.stop_requests:
                self.welcome(address, seed_data, f"{workers}{', and one for images' if runs_images else ''}")
            while not supervisor.stop_requests:
                supervisor.poll()
                time.sleep(0.2)
        finally:
            self.log_line("", "stopping")
            supervisor.stop()
            self.log_line("", "stopped")

    def log_line(self, name: str, line: str) -> None:
        """Print one line of a process in its colour; an empty name means this command."""
        colour = self.colours.setdefault(name, COLOURS[len(self.colours) % len(COLOURS)]) if name else "bold"
        self.console.print(Text.assemble((f"{name or 'up':>12} ", colour), ("│ ", "dim"), escape_controls(line)))

    def welcome(self, address: ListenAddress, seed_data: SeedData, workers: str) -> None:
        """Print addresses, login and next commands. Each can be pasted as it is."""
        table = Table.grid(padding=(0, 3))
        if not address.is_loopback:
            table.add_row("reached at", "\n".join(address.urls))
        table.add_row("admin", f"{address.url}/admin/")
        table.add_row("login", f"{seed_data.admin_username} / {seed_data.admin_password or '(changed by hand)'}")
        table.add_row("API", f"{address.url}/v1/docs")
        table.add_row("tokens", str(settings.STATE_DIR / "seed.json"))
        table.add_row("", f"{dev_server.variables_for_shell()} .venv/bin/python manage.py seed".strip())
        table.add_row("workers", "none; start one with manage.py runworker" if workers == "0" else workers)
        table.add_row("stop", "Ctrl-C")
        self.console.print(Panel(table, title="Runtime Orchestrator", title_align="left", expand=False, padding=(1, 2)))
        if not address.is_loopback:
            for line in network_warning(address):
                self.console.print(Text(f" {line} ", "bold black on yellow"))
