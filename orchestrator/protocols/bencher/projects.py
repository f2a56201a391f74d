"""Finds the project in a path, and decides whether the caller may read or change it (contract 1.3)."""

from uuid import UUID

from django.db.models import Q, QuerySet
from rest_framework.request import Request

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.authentication import LOG_IN_HINT, BencherCaller, unauthenticated
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.resource_ids import parse_resource_id
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Membership, Project
from runtime_jobs.models.tenants import Visibility


def readable_project(request: Request, text: str) -> Project:
    """Return the project that a UUID or slug names, if the caller may read it.

    Raises:
        ApiError: 400, the text is neither; 403, the key of another project and a public project.
        NotFound: There is no such project, or it is private and the caller may not see it. Both answers are equal.
    """
    resource_id, caller = parse_resource_id(text, "project"), caller_of(request)
    named = {"uuid": resource_id} if isinstance(resource_id, UUID) else {"public_slug": resource_id}
    project = Project.objects.select_related("organization").filter(**named).first()
    if project is not None and caller.can_see(project):
        return project
    if project is not None and project.visibility == Visibility.PUBLIC:
        if caller.project is not None:
            raise ApiError(403, "forbidden", "The key is of another project.")
        return project
    hint = "" if caller.is_authenticated else f" {LOG_IN_HINT}"
    raise NotFound(f"There is no project {text}, or you may not see it.{hint}")


def readable_projects(caller: BencherCaller) -> QuerySet[Project]:
    """Return the public projects, and the private ones that the caller may read."""
    rows = Project.objects.select_related("organization__plan")
    if caller.project is not None:
        return rows.filter(Q(visibility=Visibility.PUBLIC) | Q(pk=caller.project.pk))
    if caller.user is None:
        return rows.filter(visibility=Visibility.PUBLIC)
    if caller.user.is_staff:
        return rows
    organizations = Membership.objects.filter(user=caller.user).values("organization")
    return rows.filter(Q(visibility=Visibility.PUBLIC) | Q(organization__in=organizations))


def changeable_project(request: Request, text: str) -> Project:
    """Return the project that a UUID or slug names, if the caller may change its resources.

    Raises:
        ApiError: As `readable_project`; also 401 without credentials, and 403 for a public project of others.
        NotFound: As `readable_project`.
    """
    project, caller = readable_project(request, text), caller_of(request)
    if not caller.is_authenticated:
        raise unauthenticated(f"A member of the organization must be authenticated. {LOG_IN_HINT}")
    if not caller.may_change(project):
        raise ApiError(403, "forbidden", f"You are no member of the organization {project.organization.slug}.")
    return project
