"""`manage.py repository`: adds git repositories to projects, changes, lists and removes them."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from orchestrator.core.cause import Cause
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.management.base import ServerCommand
from orchestrator.repositories.operations import (
    add_repository,
    change_repository,
    delete_runs_of_repository,
    remove_repository,
)
from orchestrator.repositories.tasks import MIRROR
from runtime_jobs.control_characters import escape_controls
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.models import Project, Repository

OPERATOR = Actor("operator", "manage.py repository")
OPTIONS = {"name": "--name", "origin": "--from", "credential": "--credential-file"}  # by field of the operation


class Command(ServerCommand):
    """Adds, changes, lists and removes repositories."""

    help = "Adds, changes, lists and removes the git repositories of projects. Housekeeping keeps a mirror of each."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add = actions.add_parser("add", help="add a repository to a project")
        add.add_argument("--project", metavar="ORG/PROJECT", required=True)
        add.add_argument("--name", metavar="OWNER/NAME", required=True, help="address for git: /OWNER/NAME.git")
        add.add_argument("--from", dest="origin", metavar="URL|PATH", required=True, help="what the mirror follows")
        add.add_argument("--private", action="store_true", help="git asks clients for credentials")
        credential = "`user:password` or a token for the origin; - reads standard input"
        add.add_argument("--credential-file", metavar="FILE", help=credential)
        change = actions.add_parser("change", help="change the origin, the credential or the visibility")
        change.add_argument("name", metavar="OWNER/NAME")
        new_origin = "what the mirror follows; the stored credential is not sent there"
        change.add_argument("--from", dest="origin", metavar="URL|PATH", help=new_origin)
        visibility = change.add_mutually_exclusive_group()
        visibility.add_argument("--private", action="store_const", const=True, dest="private")
        visibility.add_argument("--public", action="store_const", const=False, dest="private")
        credentials = change.add_mutually_exclusive_group()
        credentials.add_argument("--credential-file", metavar="FILE", help=credential)
        credentials.add_argument("--no-credential", action="store_true", help="the origin needs none")
        remove = actions.add_parser("remove", help="remove a repository, its mirror, secrets and variables")
        remove.add_argument("name", metavar="OWNER/NAME")
        runs = "delete its workflow runs first, except open and pinned ones"
        remove.add_argument("--delete-runs", action="store_true", help=runs)
        listing = actions.add_parser("list", help="list the repositories")
        listing.add_argument("--project", metavar="ORG/PROJECT", help="only those of this project")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["action"] == "list":
            self._list(options["project"])
            return
        acts: dict[str, Callable[..., None]] = {"add": self._add, "change": self._change, "remove": self._remove}
        act = acts[options["action"]]
        try:
            act(**options)
        except Invalid as error:
            field, texts = next(iter(error.errors.items()))
            raise CommandError(f"{OPTIONS[field]}: {texts[0]}") from None
        except LifecycleError as error:
            raise CommandError(error.message) from None

    def _add(
        self, *, project: str, name: str, origin: str, private: bool, credential_file: str | None, **_: Any
    ) -> None:
        repository = add_repository(
            project=_project(project),
            full_name=name,
            origin=origin,
            is_private=private,
            credential=_credential(credential_file) or "",
            cause=Cause(OPERATOR),
        )
        self.stdout.write(f"repository {repository.pk} {repository.full_name}: housekeeping copies it now")

    def _change(
        self,
        *,
        name: str,
        origin: str | None,
        private: bool | None,
        credential_file: str | None,
        no_credential: bool,
        **_: Any,
    ) -> None:
        credential = "" if no_credential else _credential(credential_file)
        if origin is None and private is None and credential is None:
            raise CommandError("Name what to change: --from, --private, --public, --credential-file, --no-credential.")
        found = _repository(name)
        repository = change_repository(
            repository_id=found.pk,
            origin=origin,
            is_private=private,
            credential=credential,
            cause=Cause(OPERATOR),
        )
        line = f"repository {repository.pk} {repository.full_name}: changed"
        if found.sealed_credential is not None and credential is None and repository.sealed_credential is None:
            line += "; the credential of the former origin was deleted"
        self.stdout.write(line)

    def _remove(self, *, name: str, delete_runs: bool, **_: Any) -> None:
        repository = _repository(name)
        if delete_runs:
            runs = delete_runs_of_repository(repository_id=repository.pk)
            self.stdout.write(f"{runs:,} workflow runs deleted; housekeeping deletes their objects")
        removed = remove_repository(repository_id=repository.pk, cause=Cause(OPERATOR))
        values = f"{removed['secrets']} secrets and {removed['variables']} variables"
        self.stdout.write(f"repository {repository.pk} {repository.full_name}: removed with {values}")

    def _list(self, project: str | None) -> None:
        repositories = Repository.objects.select_related("project__organization").order_by("owner", "name")
        if project:
            repositories = repositories.filter(project=_project(project))
        tasks = HousekeepingTask.objects.filter(kind=MIRROR).exclude(last_error="")
        errors = dict(tasks.values_list("subject", "last_error"))
        for repository in repositories:
            mirrored = f"mirrored {repository.mirrored_at:%Y-%m-%d %H:%M:%S}" if repository.mirrored_at else "no mirror"
            parts = [repository.full_name, "private" if repository.is_private else "public", str(repository.project)]
            parts += [repository.origin, mirrored]
            if error := errors.get(str(repository.pk)):
                parts.append(f"failing: {error}")
            self.stdout.write(f"{repository.pk:>6}  {'  '.join(map(escape_controls, parts))}")


def _credential(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--credential-file: cannot read {file}: {error}") from None


def _repository(full_name: str) -> Repository:
    owner, _, name = full_name.partition("/")
    found = Repository.objects.filter(owner__iexact=owner, name__iexact=name).first()
    if found is None:
        raise CommandError(f"There is no repository {full_name!r}. Name it as OWNER/NAME.")
    return found


def _project(path: str) -> Project:
    org_slug, _, slug = path.partition("/")
    found = Project.objects.select_related("organization").filter(organization__slug=org_slug, slug=slug).first()
    if found is None:
        raise CommandError(f"There is no project {path!r}. Name it as ORG/PROJECT.")
    return found
