"""`manage.py project`: creates projects."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from orchestrator.management.base import AddCommand, named
from runtime_jobs.models import Organization, Project
from runtime_jobs.models.tenants import JobTrace
from workers.models import Pool


class Command(AddCommand):
    """Creates a project."""

    help = "Creates projects of organizations."
    resource = "project"

    def add_fields(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="ORG/PROJECT")
        parser.add_argument("--pool", default="", help="an existing pool; by default DEFAULT_POOL")
        parser.add_argument("--trace", default="", choices=JobTrace.values, help="of jobs that do not say it")
        repositories = "owner/name, or owner/* for all of an owner; may be repeated"
        parser.add_argument("--repository", metavar="OWNER/NAME", action="append", default=[], help=repositories)
        parser.add_argument("--disabled", action="store_true", help="accept no jobs that need an enabled project yet")

    def build(self, options: dict[str, Any]) -> tuple[Project, list[str]]:
        organization, separator, slug = options["name"].partition("/")
        if not separator:
            raise CommandError("Name the project as ORG/PROJECT.")
        pool = options["pool"]
        row = Project(
            organization=named(Organization, organization, "ORG"),
            slug=slug,
            enabled=not options["disabled"],
            repositories=options["repository"],
            pool=named(Pool, pool, "--pool").slug if pool else "",
            trace=options["trace"],
        )
        return row, ["organization", "slug", "enabled", "repositories", "pool", "trace"]
