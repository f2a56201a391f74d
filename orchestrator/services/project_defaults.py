"""Finds the project, the command and the commit of a request that names only a repository."""

import shlex
from collections.abc import Sequence

from runtime_jobs import validators
from runtime_jobs.errors import Invalid, RepositoryNotAllowed
from runtime_jobs.models import Batch, Project
from runtime_jobs.specs import RepositorySource, StepsSpec

CONFIGURED = "configured"  # the name of the job that executes the project's command


def find_project(owner: str, name: str, *, organizations: Sequence[str] | None, slug: str | None = None) -> Project:
    """Return the enabled project that runs a repository.

    A project that names the repository precedes one that allows all repositories of the owner.

    Args:
        owner: The owner of the repository.
        name: The name of the repository.
        organizations: Slugs of the organizations of the caller, or None for all.
        slug: The slug of the project, if several run the repository.

    Raises:
        RepositoryNotAllowed: No enabled project runs the repository.
        Invalid: Several projects run the repository, and `slug` is None.
    """
    enabled = Project.objects.select_related("organization").filter(enabled=True)
    own = enabled if organizations is None else enabled.filter(organization__slug__in=organizations)
    projects = [project for project in own.order_by("organization__slug", "slug") if project.allows(owner, name)]
    if slug is not None:
        projects = [project for project in projects if project.slug == slug]
    full_name = f"{owner}/{name}".lower()
    exact = [project for project in projects if full_name in map(str.lower, project.repositories)]
    found = exact or projects
    if not found:
        raise RepositoryNotAllowed(f"No enabled project runs the repository {owner}/{name}.")
    if len(found) > 1:
        raise Invalid({"project_slug": [f"{len(found)} projects run this repository. Name one of them."]})
    return found[0]


def configured_job(project: Project, source: RepositorySource) -> StepsSpec:
    """Return a job of type `steps` that executes the project's configured command.

    Raises:
        Invalid: The project has no configured command, or an invalid one.
    """
    found = {
        "configured_command": validators.validate_command(project.configured_command),
        "configured_directory": validators.validate_directory(project.configured_directory),
    }
    if errors := {name: [error] for name, error in found.items() if error}:
        raise Invalid(errors, f"The project {project} has no valid configured command. Name the jobs in the request.")
    return StepsSpec(
        name=CONFIGURED,
        steps=(shlex.join(project.configured_command),),
        timeout_seconds=project.configured_timeout_seconds,
        source=source,
        working_directory=project.configured_directory,
        allow_network=project.configured_network,
    )


def newest_commit(project: Project, repo_url: str, ref: str) -> str | None:
    """Return the commit of the last push to a ref that GitHub reported, or None.

    The server never asks GitHub: an operation does not wait for another machine.
    """
    if not project.push_enabled:
        return None
    pushes = Batch.objects.filter(org_slug=project.organization.slug, project_slug=project.slug, trigger_kind="push")
    refs = [ref] if ref.startswith("refs/") else [ref, f"refs/heads/{ref}"]
    of_ref = pushes.filter(repo_url__in=[repo_url, repo_url.removesuffix(".git")], git_ref__in=refs)
    return of_ref.order_by("-id").values_list("git_commit", flat=True).first()
