"""The program `stella`: parses a command, runs it, and converts errors to exit codes."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orchestrator.cli import bundle_commands, event_commands, job_commands, quota_commands, replay_commands
from orchestrator.cli.arguments import StellaParser, attach_places
from orchestrator.cli.commands import CommandContext, CommandGroup
from orchestrator.cli.errors import CommandFailed, ExitCode
from orchestrator.cli.output import Printer

EPILOG: Final = """\
exit codes:
  0    done; with --wait and --follow: the exit code of the job
  1    a job failed without an exit code of its own; a replay does not match, a bundle is not verified
  64   usage         66   no such job or file    69   server away
  77   refused       124  --timeout has passed   130  canceled, or Ctrl-C

environment: STELLA_SERVER, STELLA_TOKEN or STELLA_TOKEN_FILE (~/.config/stella/token)
"""


def build_parser() -> StellaParser:
    """Return the parser of all commands."""
    parser = StellaParser(
        prog="stella", description="Submits and observes jobs of Runtime Orchestrator.", epilog=EPILOG
    )
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    jobs = CommandGroup(groups, "job", "Submit, observe, cancel and replay jobs.")
    job_commands.register(jobs)
    replay_commands.register(jobs)
    bundle_commands.register(CommandGroup(groups, "orch", "Export and verify audit bundles."))
    quota_commands.register(CommandGroup(groups, "quota", "Show and change quotas."))
    event_commands.register(groups)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words of the command line; by default those of the process.

    Returns:
        The exit code.
    """
    printer = Printer(is_json=False)
    try:
        options = build_parser().parse_args(attach_places(sys.argv[1:] if arguments is None else arguments))
        printer = Printer(is_json=options.format == "json")
        return int(options.run(CommandContext(options, printer)))
    except CommandFailed as error:
        printer.failure(error.message, error.document())
        return int(error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has ended, such as `head`. What Python flushes at its end has no reader either.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OUTPUT_CLOSED
