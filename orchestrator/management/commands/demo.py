"""`manage.py demo`: runs one real job from submit to findings, shows it, and leaves nothing running."""

import json
import shlex
import signal
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from orchestrator.devtools.demo.client import DemoError, DemoRequest
from orchestrator.devtools.demo.runner import SHOWN_OUTPUT_LINES, DemoRun
from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.devtools.dev_server import DevServerError, state_dir_lock
from orchestrator.devtools.process_supervisor import ProcessSupervisorError
from orchestrator.management.base import ServerCommand

INTERRUPTED = 130


class Command(ServerCommand):
    """Runs the demo."""

    help = "Runs one job from submit to findings on this machine. Exit code 0 only if its run was uploaded."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repo", help="https://github.com/owner/name instead of the demo's own repository")
        parser.add_argument("--commit", help="40 hex digits")
        parser.add_argument("--cmd", help="the command, quoted as for a shell; no shell runs it")
        parser.add_argument("--egress", help="hosts that the command may reach, separated by blanks; default: none")
        parser.add_argument("--timeout", type=int, default=300, help="seconds that the command may take")

    def handle(self, *_: Any, **options: Any) -> None:
        demo = DemoRun(Terminal(), _request(options))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, demo.supervisor.request_stop)
        try:
            with state_dir_lock(settings.STATE_DIR):
                result = demo.run()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (DemoError, ProcessSupervisorError, DevServerError) as error:
            demo.screen.output(demo.process_output[-SHOWN_OUTPUT_LINES:])
            raise CommandError(str(error)) from None
        if not self.stdout.isatty():  # for programs; a person has read it all
            self.stdout.write(json.dumps(result))
        sys.exit(0 if result["status"] == "uploaded" else 1)


def _request(options: dict[str, Any]) -> DemoRequest | None:
    if not options["repo"]:
        return None
    if not options["commit"] or not options["cmd"]:
        raise CommandError('a repository needs its commit and a command: REPO=… COMMIT=… CMD="…"')
    egress = tuple(options["egress"].split()) if options["egress"] else None
    try:
        command = tuple(shlex.split(options["cmd"]))
    except ValueError as error:
        raise CommandError(f"CMD: {error}") from None
    return DemoRequest(options["repo"], options["commit"], command, options["timeout"], egress)
