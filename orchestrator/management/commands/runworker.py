"""`manage.py runworker`: runs one worker process, which uses the server over HTTP and never opens the database."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.agent.crash import EXIT_CODE
from workers.agent.errors import WorkerCrashed, WorkerStartError
from workers.agent.slots import MAX_SLOTS
from workers.agent.worker import WorkerOptions, WorkerProcess
from workers.engines import engine_named
from workers.engines.contract import EngineUnavailable, RunLimits


class Command(BaseCommand):
    """Runs a worker process."""

    help = (
        "Claims jobs from a server and runs them. The first SIGTERM or SIGINT lets them finish; the second stops them."
    )
    requires_system_checks: list[str] = []  # some of them query the database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--server", required=True, help="https://… or http://127.0.0.1:…")
        parser.add_argument(
            "--token-file",
            required=True,
            type=Path,
            help="a file with the worker's token and, in its second line, the worker's id",
        )
        parser.add_argument("--worker-id", help="if it is not in the token file")
        parser.add_argument("--pool", default=settings.DEFAULT_POOL)
        parser.add_argument(
            "--capacity",
            type=int,
            choices=range(1, MAX_SLOTS + 1),
            default=1,
            metavar="N",
            help=f"jobs at a time, at most {MAX_SLOTS}",
        )
        parser.add_argument("--once", action="store_true", help="claim one job, run it and exit")
        parser.add_argument("--engine", choices=sorted(settings.ENGINES), default="bubblewrap")
        parser.add_argument("--work-dir", type=Path, default=settings.WORKER_DIR, help="for one worker process only")

    def handle(self, **options: Any) -> None:
        worker_options = WorkerOptions(
            server=options["server"],
            token_file=options["token_file"],
            worker_id=options["worker_id"],
            pool=options["pool"],
            capacity=options["capacity"],
            work_dir=options["work_dir"],
            mirrors=settings.GIT_MIRRORS,
            ingest_url=settings.INGEST_URL,
            ingest_token_file=settings.INGEST_TOKEN_FILE,
            limits=RunLimits(
                log_head_bytes=settings.WORKER_LOG_HEAD_BYTES, log_tail_bytes=settings.WORKER_LOG_TAIL_BYTES
            ),
        )
        try:
            chosen: dict[str, Any] = settings.ENGINES[options["engine"]]
            engine = engine_named(chosen["BACKEND"], **chosen["OPTIONS"])
            WorkerProcess(worker_options, engine).run(once=options["once"])
        except (WorkerStartError, EngineUnavailable) as error:
            raise CommandError(str(error)) from None
        except WorkerCrashed as error:
            raise CommandError(str(error), returncode=EXIT_CODE) from None
