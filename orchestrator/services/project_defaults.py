"""What a run on a commit consists of where nobody says: the project's configured command."""

import shlex
from collections.abc import Sequence

from runtime_jobs import validators
from runtime_jobs.errors import Invalid, RepositoryNotAllowed
from runtime_jobs.models import Batch, Project
from runtime_jobs.specs import RepositorySource, StepsSpec

CONFIGURED = "configured"  # the name of the one job that is planned


def project_for(owner: str, name: str, *, organizations: Sequence[str] | None, slug: str | None = None) -> Project:
    """The enabled project of these organizations (None: of all) that runs the repository; `slug` tells several apart.

    One that names it goes before one that takes all of its owner's. Raises RepositoryNotAllowed, Invalid."""
    enabled = Project.objects.select_related("organization").filter(enabled=True)
    mine = enabled if organizations is None else enabled.filter(organization__slug__in=organizations)
    running = [project for project in mine.order_by("organization__slug", "slug") if project.allows(owner, name)]
    if slug is not None:
        running = [project for project in running if project.slug == slug]
    exact = [one for one in running if f"{owner}/{name}".lower() in map(str.lower, one.repositories)]
    found = exact or running
    if not found:
        raise RepositoryNotAllowed("No enabled project runs this repository.")
    if len(found) > 1:
        raise Invalid({"project_slug": ["Several projects run this repository: say which."]})
    return found[0]


def configured(project: Project, source: RepositorySource) -> StepsSpec:
    """The project's configured command as one job of type `steps`. Raises Invalid where there is none that runs."""
    wrong = {
        "configured_command": validators.validate_command(project.configured_command),
        "configured_directory": validators.validate_directory(project.configured_directory),
    }
    if errors := {name: [why] for name, why in wrong.items() if why}:
        raise Invalid(errors, "The project has no configured command that can be run; send jobs.")
    return StepsSpec(
        name=CONFIGURED,
        steps=(shlex.join(project.configured_command),),
        timeout_seconds=project.configured_timeout_seconds,
        source=source,
        working_directory=project.configured_directory,
        allow_network=project.configured_network,
    )


def newest_commit(project: Project, repo_url: str, ref: str) -> str | None:
    """What GitHub has told of the ref's last push, if pushes of this project are listened to. Nobody asks GitHub: a
    verb waits for no other machine."""
    if not project.push_enabled:
        return None
    pushed = Batch.objects.filter(org_slug=project.organization.slug, project_slug=project.slug, trigger_kind="push")
    names = [ref] if ref.startswith("refs/") else [ref, f"refs/heads/{ref}"]
    of_ref = pushed.filter(repo_url__in=[repo_url, repo_url.removesuffix(".git")], git_ref__in=names)
    return of_ref.order_by("-id").values_list("git_commit", flat=True).first()
