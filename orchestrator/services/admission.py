"""May this job be taken at all: the organization, its plan, its project, the repository."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from django.conf import settings

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import LimitKind
from leases.scheduling.limits import LimitTarget
from leases.scheduling.submit_quotas import QuotaColumns, Room, room_in
from orchestrator.services.unit_of_work.operation import current_unit_of_work, lane_updates
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import (
    FeatureNotEnabled,
    NotFound,
    PoolForbidden,
    PriorityForbidden,
    ProjectNotEnabled,
    RepositoryNotAllowed,
    TimeoutAbovePlan,
)
from runtime_jobs.models import Job, Organization, Plan, Project
from runtime_jobs.prepared_queries import PreparedQuery, Sql
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.specs import JOB_TYPES, JobSpec
from workers.models import Pool


@dataclass(frozen=True)
class TenantRow(QuotaColumns):
    """An organization with one of the projects that were named, or once without a project."""

    organization: Organization
    plan: Plan
    project: Project | None
    pool: Pool | None
    now: Annotated[datetime, Sql("clock_timestamp()")]


_TENANTS = PreparedQuery(
    TenantRow,
    "JOIN runtime_jobs_plan plan ON plan.id = t.plan_id"
    " LEFT JOIN runtime_jobs_project project ON project.organization_id = t.id AND project.slug = ANY (%s)"
    " LEFT JOIN workers_pool pool ON pool.slug = coalesce(nullif(project.pool, ''), %s)"
    " LEFT JOIN submit_quotas quota ON quota.org_slug = t.slug"
    " WHERE t.slug = ANY (%s)",
)


def has_emergency_lane(org_slug: str) -> bool:
    """Report whether an operator has set how many of the organization's jobs may skip the queue.

    No other limit holds those jobs. The organization's advisory lock is held until the transaction ends: whoever
    removes the limit waits for it, and then finds the job that was admitted here."""
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    return LimitTarget.of_organization(org_slug).limit(LimitKind.EMERGENCY) is not None


def plan_priority(org_slug: str) -> int:
    """Return the priority that the organization's plan gives its jobs."""
    found = Organization.objects.filter(slug=org_slug).values_list("plan__priority", flat=True).first()
    return 0 if found is None else found


def bounded_priority(job: Job) -> int:
    """Return the job's priority, or its plan's where the job skips the queue and no limit holds such jobs any more."""
    if job.priority < EMERGENCY or has_emergency_lane(job.org_slug):
        return job.priority
    return plan_priority(job.org_slug)


@dataclass(frozen=True)
class Placement:
    """Where an admitted job goes."""

    priority: int
    pool: str
    least_isolation: str
    limited_by_address: bool


@dataclass(frozen=True)
class AdmissionContext:
    """The tenants and pools of the jobs of one call, looked up at once. `projects` by the slugs of both; `at`: when, by
    the database's clock."""

    at: datetime

    organizations: dict[str, Organization]
    projects: dict[tuple[str, str], Project]
    pools: dict[str, Pool]
    default_pool: str
    emergencies: dict[str, bool] = field(default_factory=dict)  # that were asked for
    rooms: dict[str, Room] = field(default_factory=dict)  # what is left of the organizations' submit quotas

    def may_skip(self, org_slug: str) -> bool:
        """Whether the organization has an emergency lane; asked once for each."""
        if org_slug not in self.emergencies:
            self.emergencies[org_slug] = has_emergency_lane(org_slug)
        return self.emergencies[org_slug]

    def take_room(self, org_slug: str) -> None:
        """Reserve room for one more waiting job within the submit quota of its organization.

        Raises QueueFull, SubmitRateExceeded."""
        room = self.rooms[org_slug]
        room.take()
        lane_updates().enforce(org_slug, room.terms)


def load_context(projects: Collection[tuple[str, str]], *, default_pool: str) -> AdmissionContext:
    """Look up these projects, each by the slugs of its organization and its own."""
    organizations, names = (list({pair[place] for pair in projects}) for place in (0, 1))
    rows = _TENANTS.all(names, default_pool, organizations)
    known = AdmissionContext(rows[0].now if rows else database_now(), {}, {}, {}, default_pool)
    for row in rows:
        slug = row.organization.slug
        known.organizations[slug] = row.organization
        if slug not in known.rooms:
            known.rooms[slug] = room_in(row.organization, row, recounted=slug in current_unit_of_work().recounted)
        if row.project is not None:
            known.projects[slug, row.project.slug] = row.project
        if row.pool is not None:
            known.pools[row.pool.slug] = row.pool
    return known


def admit(
    *,
    org_slug: str,
    project_slug: str,
    spec: JobSpec,
    known: AdmissionContext,
    pool: str | None = None,
    priority: int | None = None,
) -> Placement:
    """Check document 000's rules in order and say where the job goes.

    Raises NotFound (organization), FeatureNotEnabled, ProjectNotEnabled (also when there is none: which projects
    exist is no business of a caller that may use none), RepositoryNotAllowed, TimeoutAbovePlan, PoolForbidden (`pool`
    is not the project's: a pool may be another tenant's own), PriorityForbidden."""
    organization = known.organizations.get(org_slug)
    if organization is None:
        raise NotFound("There is no such organization.")
    if JOB_TYPES[spec.job_type].needs_hosted_analysis and not organization.hosted_runtime_analysis:
        raise FeatureNotEnabled("Hosted runtime analysis is not enabled for this organization.")
    project = known.projects.get((org_slug, project_slug))
    if project is None or not project.enabled:
        raise ProjectNotEnabled("There is no such project, or it is not enabled.")
    if spec.source and not project.allows(*spec.source.repository):
        raise RepositoryNotAllowed("This project may not run that repository.")
    if spec.timeout_seconds > organization.plan.max_timeout_seconds:
        limit = organization.plan.max_timeout_seconds
        raise TimeoutAbovePlan(f"The plan allows at most {limit} seconds.", max_timeout_seconds=limit)
    place = _placement(organization, project, known)
    if pool not in {None, place.pool}:
        raise PoolForbidden("Jobs of this project do not go into that pool.")
    return place if priority is None else replace(place, priority=_allowed(organization, priority, known))


def readmit(job: Job, *, limited: bool) -> dict[str, Any]:
    """Check today's rules for a new attempt of this job, and return the columns in which it differs from the last one.

    A new attempt that people ask for is a new request: the organization, the project, the repository list and the plan
    may have changed since the job was submitted. The priority stays, also where an operator has raised it.

    Args:
        job: The attempt before.
        limited: The organization's submit quota counts the new attempt and may refuse it.

    Raises:
        LifecycleError: Everything that `admit` raises.
        QueueFull, SubmitRateExceeded: The submit quota is used up.
    """
    home = (job.org_slug, job.project_slug)
    known = load_context([home], default_pool=settings.DEFAULT_POOL)
    spec = JOB_TYPES[job.job_type].asked(job)
    found = admit(org_slug=job.org_slug, project_slug=job.project_slug, spec=spec, known=known)
    if limited:
        known.take_room(job.org_slug)
    return {
        "pool": found.pool,
        "least_isolation": found.least_isolation,
        "limited_by_address": found.limited_by_address,
    }


def _allowed(organization: Organization, priority: int, known: AdmissionContext) -> int:
    """Up to the plan's own; and to skip the queue, where an operator has said how many jobs at once may do that."""
    if priority > organization.plan.priority and not (priority == EMERGENCY and known.may_skip(organization.slug)):
        raise PriorityForbidden("The organization's jobs do not have that priority.")
    return priority


def _placement(organization: Organization, project: Project, known: AdmissionContext) -> Placement:
    slug = project.pool or known.default_pool
    pool = known.pools.get(slug)
    least = project.least_isolation or (pool.least_isolation if pool else "namespaces")
    return Placement(
        priority=organization.plan.priority,
        pool=slug,
        least_isolation=least,
        limited_by_address=organization.plan.one_per_address,
    )
