"""`manage.py createkey`: creates or revokes keys of people and projects for the Bencher API."""

import sys
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from orchestrator.core.cause import Cause
from orchestrator.management.base import ServerCommand
from orchestrator.services import credentials, personal_keys
from runtime_jobs.db_time import database_now
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, PersonalKey, Project
from workers.registry.tokens import digest_of

OPERATOR = Actor("operator", "manage.py createkey")
REASON = "manage.py createkey --revoke"


class Command(ServerCommand):
    """Creates a key and prints it, or revokes the key on standard input."""

    help = "Creates or revokes a key of a person or project for the Bencher API. Prints the new key, once."

    def add_arguments(self, parser: CommandParser) -> None:
        action = parser.add_mutually_exclusive_group(required=True)
        action.add_argument("--user", metavar="NAME", help="create a personal key (bencher_user_…) of this user")
        action.add_argument("--project", metavar="ORG/PROJECT", help="create a key (bencher_run_…) of this project")
        action.add_argument("--revoke", action="store_true", help="revoke the key on standard input")
        parser.add_argument("--jwt", action="store_true", help="with --user: create a JSON Web Token instead")
        parser.add_argument("--name", default="createkey", help="a name for people")
        parser.add_argument("--days", type=int, metavar="N", help="days until the key expires (JSON Web Token: 365)")

    def handle(self, **options: Any) -> None:
        if options["revoke"]:
            self.stdout.write(_revoke(sys.stdin.readline().strip()))
            return
        days = options["days"]
        if days is not None and days < 1:
            raise CommandError("--days must be at least 1.")
        if options["jwt"] and not options["user"]:
            raise CommandError("--jwt needs --user: only people have JSON Web Tokens.")
        expires_at = database_now() + timedelta(days=days) if days else None
        arguments = {"name": options["name"], "expires_at": expires_at, "cause": Cause(OPERATOR)}
        if options["user"]:
            user = _user(options["user"])
            _, key = personal_keys.create_personal_key(user=user, is_jwt=options["jwt"], creator=None, **arguments)
        else:
            project = _project(options["project"])
            _, key = credentials.create_api_token(
                organization=project.organization, project=project, scopes=[], **arguments
            )
        self.stdout.write(key)


def _revoke(key: str) -> str:
    digest = digest_of(key)
    if personal := PersonalKey.objects.filter(digest=digest).first():
        return f"revoked: {personal_keys.revoke_personal_key(key_id=personal.pk, cause=Cause(OPERATOR, REASON))}"
    if token := ApiToken.objects.filter(digest=digest).first():
        return f"revoked: {credentials.revoke_api_token(token_id=token.pk, cause=Cause(OPERATOR, REASON))}"
    raise CommandError("The text on standard input is no key of this installation.")


def _user(name: str) -> Any:
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise CommandError(f"No user has the name {name!r}.")
    return user


def _project(path: str) -> Project:
    org_slug, _, slug = path.partition("/")
    rows = Project.objects.select_related("organization")
    project = rows.filter(organization__slug=org_slug, slug=slug).first()
    if project is None:
        raise CommandError(f"There is no project {path!r}. Name it as ORG/PROJECT.")
    return project
