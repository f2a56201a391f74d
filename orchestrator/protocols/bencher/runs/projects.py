"""Finds the project of a run, or creates it, and checks whether the caller may submit runs to it (contract 2.11)."""

from uuid import UUID

from django.db.models import Q

from orchestrator.core.cause import Cause
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.authentication import LOG_IN_HINT, unauthenticated
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.resource_ids import parse_uuid
from orchestrator.protocols.bencher.runs.request import RunRequest, RunSender
from orchestrator.services.tenants import (
    claim_locked,
    create_own_project,
    create_unclaimed_project,
    is_claimed,
    lock_organization,
)
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Project
from runtime_jobs.models.tenants import Visibility
from runtime_jobs.resource_names import is_slug

NO_PROJECT = (
    "project: Name the project, push the image to the repository of a project, or send a context with the name of the "
    "repository."
)


def project_of_run(uow: UnitOfWork, run: RunRequest, sender: RunSender) -> Project:
    """Return the project of a run. A project that does not exist is created, within the transaction of the operation.

    The request names the project, else the repository of its image does, else its context.

    Raises:
        ApiError: 400, nothing names a project; 401, the key of another project, or an anonymous run of a project whose
            organization has an owner; 403, a public project of others.
        NotFound: There is no project with this UUID, or the caller may not see it.
    """
    key_project = sender.caller.project
    if key_project is not None:
        return _project_of_key(run, key_project)
    resource_id = _resource_id(run)
    project = _find(resource_id)
    if project is not None:
        return _permitted(uow, project, sender, resource_id)
    if isinstance(resource_id, UUID):
        raise _not_found(resource_id)
    if sender.caller.user is None:
        return create_unclaimed_project(resource_id, run.context.name or resource_id)
    return create_own_project(resource_id, user=sender.caller.user)


def find_project(run: RunRequest, sender: RunSender) -> Project | None:
    """Return the project of a run if it exists, whether or not the caller may submit to it.

    Raises:
        ApiError: 400, nothing names a project.
    """
    return sender.caller.project or _find(_resource_id(run))


def _resource_id(run: RunRequest) -> UUID | str:
    """Return the UUID or slug by which the run names its project."""
    if run.project is not None:
        return parse_uuid(run.project) or run.project
    named = run.job.reference.project if run.job else None
    if named is not None and (parse_uuid(named) or is_slug(named)):
        return parse_uuid(named) or named
    if run.context.slug is None:
        raise bad_request(NO_PROJECT)
    return run.context.slug


def _find(resource_id: UUID | str) -> Project | None:
    named = Q(uuid=resource_id) if isinstance(resource_id, UUID) else Q(public_slug=resource_id)
    return Project.objects.select_related("organization__plan").filter(named).first()


def _project_of_key(run: RunRequest, project: Project) -> Project:
    """Return the project of a key, whether or not there is another one with the name in the run.

    A tag in another repository is refused when it is resolved.
    """
    named = run.project or (run.job.reference.project if run.job and run.job.reference.digest else None)
    if named is not None and (parse_uuid(named) or named) not in {project.uuid, project.public_slug}:
        raise unauthenticated("The key is not of the project that the run names.")
    return Project.objects.select_related("organization__plan").get(pk=project.pk)


def _not_found(resource_id: UUID | str) -> NotFound:
    """Return the error of a project that does not exist, or that the caller may not see."""
    named = f"with the UUID {resource_id}" if isinstance(resource_id, UUID) else resource_id
    return NotFound(f"There is no project {named}, or you may not see it.")


def _permitted(uow: UnitOfWork, project: Project, sender: RunSender, resource_id: UUID | str) -> Project:
    """Return a project to which the caller may submit runs.

    An authenticated run of a project without an owner makes its sender the owner. Staff with the permission to change
    all projects own nothing by a run.
    """
    user, organization = sender.caller.user, project.organization
    if not is_claimed(organization):
        organization = project.organization = lock_organization(organization.pk)  # may have an owner meanwhile
    has_owner = is_claimed(organization)
    if user is None:
        if has_owner and project.visibility != Visibility.PUBLIC and isinstance(resource_id, UUID):
            raise _not_found(resource_id)  # its slug must not follow from its UUID
        if has_owner:
            message = f"The project {project.public_slug} has an owner. {LOG_IN_HINT}"
            raise unauthenticated(message)
        return project
    if sender.caller.may_change(project):
        return project
    if not has_owner:
        actor, address = sender.caller.actor, sender.source_address
        claim_locked(uow, organization, user=user, cause=Cause(actor, source_address=address))
        return project
    if project.visibility == Visibility.PUBLIC or sender.caller.can_see(project):
        message = f"You are no member of the organization {organization.slug}, which owns the project."
        raise ApiError(403, "forbidden", message)
    raise _not_found(resource_id)
