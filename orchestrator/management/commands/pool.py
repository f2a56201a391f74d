"""`manage.py pool`: creates pools."""

from argparse import ArgumentParser
from typing import Any

from orchestrator.management.base import AddCommand
from runtime_jobs.models.tenants import ISOLATION_CHOICES, JobTrace
from workers.models import Pool


class Command(AddCommand):
    """Creates a pool."""

    help = "Creates pools of workers."
    resource = "pool"

    def add_fields(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug")
        parser.add_argument("--description", default="")
        parser.add_argument(
            "--isolation",
            default="namespaces",
            choices=[name for name, _ in ISOLATION_CHOICES],
            help="least of its jobs",
        )
        parser.add_argument("--trace", default="", choices=JobTrace.values, help="of jobs that do not say it")
        text = "accept the id of a lease instead of a token: the runner of Delta CI sends no credentials"
        parser.add_argument("--unauthenticated-runners", action="store_true", help=text)

    def build(self, options: dict[str, Any]) -> tuple[Pool, list[str]]:
        row = Pool(
            slug=options["slug"],
            description=options["description"],
            least_isolation=options["isolation"],
            trace=options["trace"],
            trusts_lease_ids=options["unauthenticated_runners"],
        )
        return row, ["slug", "description", "least_isolation", "trace", "trusts_lease_ids"]
