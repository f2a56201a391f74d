"""May this job be taken at all: the organization, its plan, its project, the repository."""

from dataclasses import dataclass, replace

from leases.limits import Subject
from leases.models import LimitKind
from runtime_jobs.errors import (
    FeatureNotEnabled,
    NotFound,
    PoolForbidden,
    PriorityForbidden,
    ProjectNotEnabled,
    RepositoryNotAllowed,
    TimeoutAbovePlan,
)
from runtime_jobs.models import Organization, Project
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.specs import Spec
from workers.models import Pool


@dataclass(frozen=True)
class Placement:
    """Where an admitted job goes."""

    priority: int
    pool: str
    least_isolation: str
    limited_by_address: bool


def admit(
    *,
    org_slug: str,
    project_slug: str,
    spec: Spec,
    default_pool: str,
    pool: str | None = None,
    priority: int | None = None,
) -> Placement:
    """Check document 000's rules in order and say where the job goes.

    Raises NotFound (organization), FeatureNotEnabled, ProjectNotEnabled (also when there is none: which projects
    exist is no business of a caller that may use none), RepositoryNotAllowed, TimeoutAbovePlan, PoolForbidden (`pool`
    is not the project's: a pool may be another tenant's own), PriorityForbidden."""
    organization = Organization.objects.select_related("plan").filter(slug=org_slug).first()
    if organization is None:
        raise NotFound("There is no such organization.")
    if not organization.hosted_runtime_analysis:
        raise FeatureNotEnabled("Hosted runtime analysis is not enabled for this organization.")
    project = _enabled_project(organization, project_slug)
    if spec.source and not project.allows(*spec.source.repository):
        raise RepositoryNotAllowed("This project may not run that repository.")
    if spec.timeout_seconds > organization.plan.max_timeout_seconds:
        limit = organization.plan.max_timeout_seconds
        raise TimeoutAbovePlan(f"The plan allows at most {limit} seconds.", max_timeout_seconds=limit)
    place = _placement(organization, project, default_pool)
    if pool not in {None, place.pool}:
        raise PoolForbidden("Jobs of this project do not go into that pool.")
    return place if priority is None else replace(place, priority=_allowed(organization, priority))


def _allowed(organization: Organization, priority: int) -> int:
    """Up to the plan's own; and to skip the queue, where an operator has said how many jobs at once may do that."""
    emergency = Subject.of_organization(organization.slug).limit(LimitKind.EMERGENCY)
    if priority > organization.plan.priority and not (priority == EMERGENCY and emergency):
        raise PriorityForbidden("The organization's jobs do not have that priority.")
    return priority


def _enabled_project(organization: Organization, slug: str) -> Project:
    project = organization.projects.filter(slug=slug).first()
    if project is None or not project.enabled:
        raise ProjectNotEnabled("This project is not enabled for hosted runtime analysis.")
    return project


def _placement(organization: Organization, project: Project, default_pool: str) -> Placement:
    slug = project.pool or default_pool
    pool = Pool.objects.filter(slug=slug).first()
    least = project.least_isolation or (pool.least_isolation if pool else "namespaces")
    return Placement(
        priority=organization.plan.priority,
        pool=slug,
        least_isolation=least,
        limited_by_address=organization.plan.one_per_address,
    )
