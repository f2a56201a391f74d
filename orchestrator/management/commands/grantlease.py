"""`manage.py grantlease`: claims a job for a runner that reads its lease from a file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from django.core.management.base import CommandError, CommandParser

from orchestrator.management.base import ServerCommand
from orchestrator.protocols.delta.runners.leases import as_single_step, claim_for_runner, lease_granted
from workers.models import Worker
from workers.registry.models import WorkerState

NO_WORK = 3  # the exit status when there is no work, for shell loops


class Command(ServerCommand):
    """Claims a job for a Delta CI runner."""

    help = (
        "Claims the next `steps` job for a Delta CI runner and writes the lease to a file. `runner -lease FILE` then "
        f"has to start before the lease expires. Exits with {NO_WORK} when there is no work."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", choices=["delta"], required=True, help="the protocol of the runner")
        parser.add_argument("--worker", required=True, metavar="SLUG", help="the worker that the runner acts as")
        parser.add_argument("--pool", metavar="SLUG", help="refuse to claim for a worker of another pool")
        parser.add_argument("--output", required=True, type=Path, metavar="FILE")

    def handle(self, **options: Any) -> None:
        worker = _worker(options["worker"], options["pool"])
        with _private_file(options["output"]) as file:
            claimed = claim_for_runner(worker)
            if claimed is None:
                raise CommandError("There is no work for this worker now.", returncode=NO_WORK)
            json.dump(as_single_step(lease_granted(claimed)), file, indent=2)
        self.stdout.write(f"{claimed.job.job_ulid} attempt {claimed.job.attempt}: {options['output']}")


def _worker(slug: str, pool: str | None) -> Worker:
    worker = Worker.objects.select_related("pool").filter(slug=slug).exclude(state=WorkerState.REVOKED).first()
    if worker is None:
        raise CommandError(f"No worker has the slug {slug!r}, or it was revoked.")
    if pool not in {None, worker.pool.slug}:
        raise CommandError(f"The worker {slug} is registered in the pool {worker.pool.slug}, not in {pool}.")
    return worker


@contextmanager
def _private_file(path: Path) -> Iterator[IO[str]]:
    """Yield a new file of mode 0600 that replaces `path` at the end.

    The file is opened before anything is claimed, so a path that cannot be written costs no lease.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
