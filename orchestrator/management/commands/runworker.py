"""`manage.py runworker`: one worker process. It speaks to the server over HTTP only and never opens the database."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.agent.crash import EXIT_CODE
from workers.agent.errors import WorkerCrashed, WorkerStartError
from workers.agent.slots import MAX_SLOTS
from workers.agent.worker import WorkerOptions, WorkerProcess
from workers.engines import engine_named
from workers.engines.contract import EngineUnavailable


class Command(BaseCommand):
    help = "Claim jobs from SERVER and run them. First SIGTERM or SIGINT: finish what runs; second: stop it."
    requires_system_checks: list[str] = []  # some of them look at the database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--server", required=True, help="https://… or http://127.0.0.1:…")
        parser.add_argument("--token-file", required=True, type=Path, help="the token, and below it the worker's id")
        parser.add_argument("--worker-id", help="if it does not stand in the token file")
        parser.add_argument("--pool", default=settings.DEFAULT_POOL)
        parser.add_argument(
            "--capacity", type=int, choices=range(1, MAX_SLOTS + 1), default=1, metavar="N", help="jobs at a time"
        )
        parser.add_argument("--once", action="store_true", help="claim one job, run it and exit")
        parser.add_argument("--engine", choices=sorted(settings.ENGINES), default="bubblewrap")
        parser.add_argument("--work-dir", type=Path, default=settings.WORKER_DIR, help="for one worker process only")

    def handle(self, **options: Any) -> None:
        asked = WorkerOptions(
            server=options["server"],
            token_file=options["token_file"],
            worker_id=options["worker_id"],
            pool=options["pool"],
            capacity=options["capacity"],
            work_dir=options["work_dir"],
            mirrors=settings.GIT_MIRRORS,
            ingest_url=settings.INGEST_URL,
            ingest_token_file=settings.INGEST_TOKEN_FILE,
        )
        try:
            chosen: dict[str, Any] = settings.ENGINES[options["engine"]]
            engine = engine_named(chosen["BACKEND"], **chosen["OPTIONS"])
            WorkerProcess(asked, engine).run(once=options["once"])
        except (WorkerStartError, EngineUnavailable) as refusal:
            raise CommandError(str(refusal)) from None
        except WorkerCrashed as crash:
            raise CommandError(str(crash), returncode=EXIT_CODE) from None
