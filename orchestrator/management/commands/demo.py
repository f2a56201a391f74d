"""`manage.py demo`: one real job from end to end, shown as it goes; ends by itself and leaves nothing running."""

import json
import shlex
import signal
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.devtools.demo.client import DemoError, DemoRequest
from orchestrator.devtools.demo.runner import DemoRun
from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.devtools.dev_server import DevServerError, state_dir_lock
from orchestrator.devtools.process_supervisor import ProcessSupervisorError

INTERRUPTED = 130


class Command(BaseCommand):
    help = "Runs a job through server, clock, worker and ingest. Exit code 0 only if its run was uploaded."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repo", help="https://github.com/owner/name instead of the demo's own repository")
        parser.add_argument("--commit", help="40 hex digits")
        parser.add_argument("--cmd", help="the command, quoted as for a shell; it is not run by one")
        parser.add_argument("--egress", help="hosts that the command may reach, separated by blanks; without: none")
        parser.add_argument("--timeout", type=int, default=300, help="seconds that the command may take")

    def handle(self, *_: Any, **options: Any) -> None:
        show = DemoRun(Terminal(), _order(options))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, show.crew.ask_to_stop)
        try:
            with state_dir_lock(settings.STATE_DIR):
                result = show.run()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (DemoError, ProcessSupervisorError, DevServerError) as refusal:
            show.screen.output(show.told[-15:])
            raise CommandError(str(refusal)) from None
        self.stdout.write(json.dumps(result))
        sys.exit(0 if result["status"] == "uploaded" else 1)


def _order(options: dict[str, Any]) -> DemoRequest | None:
    if not options["repo"]:
        return None
    if not options["commit"] or not options["cmd"]:
        raise CommandError('a repository needs its commit and a command: REPO=… COMMIT=… CMD="…"')
    egress = tuple(options["egress"].split()) if options["egress"] else None
    try:
        command = tuple(shlex.split(options["cmd"]))
    except ValueError as wrong:
        raise CommandError(f"CMD: {wrong}") from None
    return DemoRequest(options["repo"], options["commit"], command, options["timeout"], egress)
