"""`manage.py grantlease`: claim a job for a runner that takes its lease from a file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.protocols.delta.leases import as_single_step, claim_for_runner, lease_granted
from workers.models import Worker
from workers.registry.models import WorkerState

NOTHING = 3  # the exit status when there is no work: for loops that ask again


class Command(BaseCommand):
    help = (
        "Claims the next job of type `steps` for WORKER and writes its lease to FILE (mode 0600), for `runner -lease "
        f"FILE`. The runner must start within the job's window. Exits {NOTHING} when there is no work."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", choices=["delta"], required=True, help="whose runner it is for")
        parser.add_argument("--worker", required=True, metavar="SLUG", help="the worker that the runner is")
        parser.add_argument("--pool", metavar="SLUG", help="refuse to claim for a worker of another pool")
        parser.add_argument("--output", required=True, type=Path, metavar="FILE")

    def handle(self, **options: Any) -> None:
        worker = _worker(options["worker"], options["pool"])
        with _private(options["output"]) as file:
            claimed = claim_for_runner(worker)
            if claimed is None:
                raise CommandError("There is no work for this worker now.", returncode=NOTHING)
            json.dump(as_single_step(lease_granted(claimed)), file, indent=2)
        self.stdout.write(f"{claimed.job.job_ulid} attempt {claimed.job.attempt}: {options['output']}")


def _worker(slug: str, pool: str | None) -> Worker:
    worker = Worker.objects.select_related("pool").filter(slug=slug).exclude(state=WorkerState.REVOKED).first()
    if worker is None:
        raise CommandError("There is no such worker, or it was revoked.")
    if pool not in {None, worker.pool.slug}:
        raise CommandError(f"{slug} is registered in {worker.pool.slug}.")
    return worker


@contextmanager
def _private(path: Path) -> Iterator[IO[str]]:
    """A new file beside `path`, opened before anything is claimed, that takes its place once it is whole: nobody ever
    reads half a lease, or one that others may read."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
