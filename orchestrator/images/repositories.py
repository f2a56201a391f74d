"""Finds the project of a repository, and decides what a token permits there."""

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from orchestrator.images.errors import DENIED, INVALID_NAME, UNKNOWN_NAME, RegistryError
from orchestrator.images.tokens import PULL, AccessGrant, PullGrant
from runtime_jobs.models import Project
from runtime_jobs.models.tenants import Visibility
from runtime_jobs.resource_names import is_slug

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class InsufficientScope(Exception):
    """The token was not requested for this action on this repository: the client must request another one."""


@dataclass(frozen=True)
class ImageRepository:
    """A repository that the caller may use.

    Attributes:
        name: Its name in the path.
        project: The project.
        can_push: Whether the token permits to push.
    """

    name: str
    project: Project
    can_push: bool


def require_name(name: str) -> str:
    """Return the name of a repository: the slug or the UUID of a project.

    Raises:
        RegistryError: 400 NAME_INVALID.
    """
    if not is_slug(name):
        text = "A repository is named by the slug or the UUID of a project, in lower-case letters, digits and hyphens."
        raise RegistryError(400, INVALID_NAME, text)
    return name


def find_project(name: str) -> Project | None:
    """Return the project that a name denotes, or None. A name that has the form of a UUID is no slug."""
    named = {"uuid": UUID(name)} if _UUID.fullmatch(name) else {"public_slug": name}
    return Project.objects.filter(**named).first()


def open_repository(name: str, grant: PullGrant | AccessGrant, action: str) -> ImageRepository:
    """Return the repository with this name, if the token permits the action.

    Args:
        name: The name in the path.
        grant: The content of the token.
        action: `pull` or `push`.

    Raises:
        InsufficientScope: The token of a person or project was not requested for this action here.
        RegistryError: 403 DENIED; or 404 NAME_UNKNOWN, as for a repository that does not exist.
    """
    if isinstance(grant, PullGrant):
        return _of_runner(name, grant, action)
    entry = grant.find(name)
    if entry is None or action not in entry.requested:
        raise InsufficientScope
    if entry.project is None or action not in entry.actions:
        # A stranger learns only of public projects whether they exist.
        project = find_project(name)
        if entry.actions or (project is not None and project.visibility == Visibility.PUBLIC):
            raise denied(f"You may not {action} images of the repository {name}.")
        raise unknown_name(name)
    project = Project.objects.filter(uuid=entry.project).first()
    if project is None or name not in {project.public_slug, str(project.uuid)}:
        raise unknown_name(name)
    return ImageRepository(name, project, can_push="push" in entry.actions)


def _of_runner(name: str, grant: PullGrant, action: str) -> ImageRepository:
    """Return the repository of a runner's token, which names it exactly as the path must (contract 1.5)."""
    if name != grant.repository:
        raise denied("The token is for another repository.")
    if action not in grant.actions or action != PULL:
        raise denied(f"The token does not permit to {action} images.")
    project = find_project(name)
    if project is None:
        raise unknown_name(name)
    return ImageRepository(name, project, can_push=False)


def denied(message: str) -> RegistryError:
    """Return the refusal of an action that the caller's rights do not permit."""
    return RegistryError(403, DENIED, message)


def unknown_name(name: str) -> RegistryError:
    """Return the refusal of a repository that does not exist, or that the caller may not see."""
    return RegistryError(404, UNKNOWN_NAME, f"There is no repository {name}, or you may not see it.")
