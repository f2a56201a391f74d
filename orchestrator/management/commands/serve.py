"""`manage.py serve`: runs a web process, with limits on connections and requests."""

from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from orchestrator.http.asgi.connections import raise_file_limit
from orchestrator.http.asgi.server import run_server
from orchestrator.http.asgi.socket_activation import SocketActivationError
from orchestrator.management.base import ServerCommand


def port(text: str) -> int:
    """Return the port. uvicorn would use the value modulo 65536."""
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65536):
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


class Command(ServerCommand):
    """Runs a web process."""

    help = (
        "Serves HTTP until a signal ends it: API, admin, long polls, log streams. Takes its socket from a service "
        "manager that passes one (LISTEN_FDS). SIGHUP restarts it without a refused connection."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=port, default=8000)
        parser.add_argument("--workers", type=int, default=1, help="processes that share the port")
        parser.add_argument(
            "--graceful-seconds", type=int, default=25, help="how long requests in progress may take after a signal"
        )
        parser.add_argument("--log-level", default=None, help="of uvicorn's own lines, for example `warning`")

    def handle(self, *_: Any, **options: Any) -> None:
        raise_file_limit(settings.MAX_CONNECTIONS)
        try:
            run_server(
                host=options["host"],
                port=options["port"],
                workers=options["workers"],
                timeout_graceful_shutdown=options["graceful_seconds"],
                log_level=options["log_level"],
            )
        except SocketActivationError as error:
            raise CommandError(str(error)) from None
