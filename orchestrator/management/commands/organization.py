"""`manage.py organization`: creates organizations."""

from argparse import ArgumentParser
from typing import Any

from orchestrator.management.base import AddCommand, named
from runtime_jobs.models import Organization, Plan


class Command(AddCommand):
    """Creates an organization."""

    help = "Creates organizations, each with a plan and its features"
    resource = "organization"

    def add_fields(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug")
        parser.add_argument("--name", default="", help="for people")
        parser.add_argument("--plan", default="team", help="an existing plan; by default team")
        text = "permit jobs of document 000 (type runtime)"
        parser.add_argument("--hosted-runtime-analysis", action="store_true", help=text)

    def build(self, options: dict[str, Any]) -> tuple[Organization, list[str]]:
        row = Organization(
            slug=options["slug"],
            name=options["name"],
            plan=named(Plan, options["plan"], "--plan", column="name"),
            hosted_runtime_analysis=options["hosted_runtime_analysis"],
        )
        return row, ["slug", "name", "plan", "hosted_runtime_analysis"]
