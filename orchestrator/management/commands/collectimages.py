"""`manage.py collectimages`: deletes abandoned uploads, and contents that no image needs."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from orchestrator.images.collection import DEFAULT_AGE, collect_images
from orchestrator.images.quotas import forget_counts
from orchestrator.management.base import ServerCommand

DEFAULT_HOURS = DEFAULT_AGE.total_seconds() / 3600


class Command(ServerCommand):
    """Collects the garbage of the image registry."""

    help = (
        "Deletes abandoned uploads, blobs that no manifest names, and files without a row. "
        "Pushes may take place meanwhile. The scheduler process does the same once a day."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--hours",
            type=float,
            default=DEFAULT_HOURS,
            help=f"Keep files used within this time (default: {DEFAULT_HOURS:g}). A push must not take longer.",
        )

    def handle(self, *_: Any, hours: float, **__: Any) -> None:
        if not 0 <= hours <= 24 * 365:
            raise CommandError("--hours must be from 0 to 8760.")
        found = collect_images(timedelta(hours=hours))
        forget_counts()
        self.stdout.write(
            f"{found.uploads:,} uploads, {found.repository_blobs:,} blobs of repositories, {found.blobs:,} contents "
            f"({found.bytes:,} bytes) and {found.files:,} files deleted."
        )
