"""`manage.py apitoken`: creates an API token of an organization."""

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from orchestrator.core.cause import Cause
from orchestrator.management.base import ServerCommand
from orchestrator.services import credentials
from runtime_jobs.db_time import database_now
from runtime_jobs.events import Actor
from runtime_jobs.models import Organization
from runtime_jobs.models.tenants import Scope

OPERATOR = Actor("operator", "manage.py apitoken")


class Command(ServerCommand):
    """Creates an API token and prints it."""

    help = "Creates an API token (rto_api_…) of an organization. Prints the token, once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--org", metavar="SLUG", required=True, help="the organization of the token")
        parser.add_argument(
            "--scopes",
            metavar="SCOPE",
            nargs="+",
            required=True,
            help=f"what the token permits, separated by spaces or commas: {', '.join(Scope.values)}",
        )
        parser.add_argument("--name", default="apitoken", help="a name for people")
        parser.add_argument("--days", type=int, metavar="N", help="days until the token expires; without it never")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of the token alone")

    def handle(self, **options: Any) -> None:
        days = options["days"]
        if days is not None and days < 1:
            raise CommandError("--days must be at least 1.")
        organization = Organization.objects.filter(slug=options["org"]).first()
        if organization is None:
            raise CommandError(f"There is no organization {options['org']!r}.")
        row, token = credentials.create_api_token(
            organization=organization,
            name=options["name"],
            scopes=_scopes(options["scopes"]),
            cause=Cause(OPERATOR),
            expires_at=database_now() + timedelta(days=days) if days else None,
        )
        if not options["json"]:
            self.stdout.write(token)
            return
        created = {
            "token": token,
            "org_slug": organization.slug,
            "name": row.name,
            "scopes": row.scopes,
            "expires_at": row.expires_at and row.expires_at.isoformat(),
        }
        self.stdout.write(json.dumps(created))


def _scopes(words: list[str]) -> list[str]:
    scopes = list(dict.fromkeys(scope for word in words for scope in word.split(",") if scope))
    if unknown := [scope for scope in scopes if scope not in Scope.values]:
        raise CommandError(f"There is no scope {unknown[0]!r}. The scopes are {', '.join(Scope.values)}.")
    return scopes
