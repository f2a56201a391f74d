"""The parts that all commands share: their options, the client, and ids of jobs."""

import argparse
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol
from uuid import UUID

from orchestrator.cli.arguments import duration
from orchestrator.cli.client import StellaClient
from orchestrator.cli.connection import find_access
from orchestrator.cli.deadlines import Deadline
from orchestrator.cli.errors import CommandFailed, ExitCode
from orchestrator.cli.output import Printer

PAGE: Final = 200  # the most that the API returns at once


@dataclass
class CommandContext:
    """The options of a command, and where it writes.

    Attributes:
        options: The options.
        printer: Writes the output.
        deadline: The end of `--timeout`, which begins with the command.
    """

    options: argparse.Namespace
    printer: Printer

    def __post_init__(self) -> None:
        self.deadline = Deadline(getattr(self.options, "timeout", None))

    @cached_property
    def client(self) -> StellaClient:
        """The client of the server of the options. Commands without a server never ask for it."""
        options = self.options
        access = find_access(server=options.server, token_file=options.token_file, plain_http=options.plain_http)
        return StellaClient(access, self.deadline)


class StellaCommand(Protocol):
    """Runs a command and returns its exit code."""

    def __call__(self, context: CommandContext) -> int: ...


class CommandGroup:
    """Adds the commands of one group to the parser.

    Args:
        groups: The parsers of all groups.
        name: The first word of the commands.
        summary: What they are about.
    """

    def __init__(self, groups: Any, name: str, summary: str) -> None:
        parser = groups.add_parser(name, help=summary, description=summary)
        self._commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(self, name: str, run: StellaCommand, summary: str, *, is_online: bool = True) -> argparse.ArgumentParser:
        """Return the parser of a new command, which has the common options."""
        return add_command(self._commands, name, run, summary, is_online=is_online)


def add_command(
    parsers: Any, name: str, run: StellaCommand, summary: str, *, is_online: bool = True
) -> argparse.ArgumentParser:
    """Return the parser of a new command.

    Args:
        parsers: Where to add it.
        name: Its name.
        run: The function that runs it.
        summary: One sentence.
        is_online: Whether the command calls a server.
    """
    parser: argparse.ArgumentParser = parsers.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run)
    parser.add_argument("-o", "--format", choices=("text", "json"), default="text", help="format of the output")
    if is_online:
        server = parser.add_argument_group("server")
        server.add_argument("--server", metavar="URL", help="address of the server (STELLA_SERVER)")
        server.add_argument("--token-file", metavar="FILE", help="file with the token (STELLA_TOKEN_FILE)")
        server.add_argument("--plain-http", action="store_true", help="send the token without TLS to another machine")
    return parser


def add_job_id(parser: argparse.ArgumentParser, option: str = "--id") -> None:
    """Add the option that names a job."""
    parser.add_argument(option, dest="job_id", metavar="ID", type=job_id, required=True, help="id of the job")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits how long a command waits."""
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=duration,
        help="stop waiting after this time, such as 90s or 10m, with exit code 124; the job continues",
    )


def job_id(text: str) -> str:
    """Return the id of a job in its usual spelling.

    Raises:
        CommandFailed: The text is no id, so there is no such job.
    """
    try:
        return str(UUID(text))
    except ValueError:
        raise CommandFailed(ExitCode.NOT_FOUND, f"There is no job {text!r}: ids are UUIDs.", code="not_found") from None
