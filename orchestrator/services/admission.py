"""Checks whether a job may be submitted: organization, plan, project, repository, pool, priority and submit quota."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any

from django.conf import settings

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import LimitKind
from leases.scheduling.lanes import LaneKey
from leases.scheduling.limits import LimitTarget
from leases.scheduling.submit_quotas import QuotaColumns, RemainingQuota, remaining_quota_in
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.services.packs import require_pack
from orchestrator.services.payload_schemas import require_matching_payload
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import (
    FeatureNotEnabled,
    Invalid,
    NotFound,
    PoolForbidden,
    PriorityForbidden,
    ProjectNotEnabled,
    RepositoryNotAllowed,
    TimeoutAbovePlan,
)
from runtime_jobs.models import Job, Organization, PackVersion, Plan, Project
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.prepared_queries import PreparedQuery, Sql
from runtime_jobs.priorities import EMERGENCY, priority_name
from runtime_jobs.specs import JOB_TYPES, PACK_RUN, JobSpec, PayloadSpec
from runtime_jobs.specs.exports import bundle_errors, is_audit_bundle
from runtime_jobs.specs.payload import EXPORT
from workers.models import Pool

DEFAULT_ISOLATION = "namespaces"  # of jobs in a pool that does not exist yet


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


@dataclass(frozen=True)
class PlacedTenantRow(TenantRow):
    """The organization and the project of one job, with the lane where the job will probably wait."""

    lane_id: Annotated[int | None, Sql("lane.id")]
    lane_pool: Annotated[str, Sql("lane.pool")]
    lane_priority: Annotated[int, Sql("lane.priority")]
    lane_address: Annotated[str, Sql("lane.source_address")]
    lane_isolation: Annotated[str, Sql("lane.least_isolation")]


# The lane is a guess that saves a trip: `_placement` decides, and a lane of another key is not used.
_TENANT = PreparedQuery(
    PlacedTenantRow,
    "JOIN runtime_jobs_plan plan ON plan.id = t.plan_id"
    " LEFT JOIN runtime_jobs_project project ON project.organization_id = t.id AND project.slug = %s"
    " LEFT JOIN workers_pool pool ON pool.slug = coalesce(nullif(project.pool, ''), %s)"
    " LEFT JOIN submit_quotas quota ON quota.org_slug = t.slug"
    " LEFT JOIN LATERAL ("
    "   SELECT l.id, q.pool, q.priority, l.source_address, p.least_isolation"
    "     FROM lane_profiles p JOIN lane_queues q ON q.profile_id = p.id JOIN lanes l ON l.queue_id = q.id"
    "    WHERE p.job_type = %s AND p.requirements = %s::varchar[]"
    "      AND p.least_isolation = coalesce(nullif(project.least_isolation, ''), pool.least_isolation, %s)"
    "      AND q.pool = coalesce(nullif(project.pool, ''), %s) AND q.org_slug = t.slug"
    "      AND q.priority = coalesce(%s::integer, plan.priority)"
    "      AND l.project_slug = project.slug AND l.concurrency_key = %s"
    "      AND l.source_address = CASE WHEN plan.one_per_address THEN %s ELSE '' END) lane ON true"
    " WHERE t.slug = %s",
)


def has_emergency_limit(org_slug: str) -> bool:
    """Report whether an operator has limited the organization's emergency jobs, which allows it to have some.

    Emergency jobs skip the queue, and no other limit applies to them. The organization's advisory lock is kept until
    the transaction ends: whoever removes the limit waits for it, and then finds the job that was admitted here.
    """
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    return LimitTarget.of_organization(org_slug).limit(LimitKind.EMERGENCY) is not None


def plan_priority(org_slug: str) -> int:
    """Return the priority that the organization's plan gives its jobs."""
    priority = Organization.objects.filter(slug=org_slug).values_list("plan__priority", flat=True).first()
    return 0 if priority is None else priority


def bounded_priority(job: Job) -> int:
    """Return the job's priority, or that of its plan for an emergency job whose limit has been removed."""
    if job.priority < EMERGENCY or has_emergency_limit(job.org_slug):
        return job.priority
    return plan_priority(job.org_slug)


@dataclass(frozen=True)
class Placement:
    """The scheduling fields of an admitted job, and the version of the pack that a pack run names."""

    priority: int
    pool: str
    least_isolation: str
    limited_by_address: bool
    trace: JobTrace
    pack: PackVersion | None = None


@dataclass(frozen=True)
class AdmissionContext:
    """The tenants and pools of all jobs of one call, read at once.

    Attributes:
        now: The time of the database.
        organizations: By slug.
        projects: By the slugs of organization and project.
        pools: By slug.
        default_pool: The slug of the pool of projects that name none.
        emergencies: Whether an organization may have emergency jobs, by slug, as far as it was read.
        quotas: What is left of the submit quotas, by the slug of the organization.
    """

    uow: UnitOfWork
    now: datetime
    organizations: dict[str, Organization]
    projects: dict[tuple[str, str], Project]
    pools: dict[str, Pool]
    default_pool: str
    emergencies: dict[str, bool] = field(default_factory=dict)
    quotas: dict[str, RemainingQuota] = field(default_factory=dict)

    def allows_emergency(self, org_slug: str) -> bool:
        """Report whether the organization may have emergency jobs; read once for each organization."""
        if org_slug not in self.emergencies:
            self.uow.require_transaction()  # an advisory lock guards the limit until the commit
            self.emergencies[org_slug] = has_emergency_limit(org_slug)
        return self.emergencies[org_slug]

    def reserve_quota(self, org_slug: str) -> None:
        """Reserve room for one more waiting job within the submit quota of its organization.

        Raises:
            QueueFull: The organization has as many waiting jobs as its plan allows.
            SubmitRateExceeded: The organization submits faster than its plan allows.
        """
        quota = self.quotas[org_slug]
        quota.take()
        self.uow.lane_updates.enforce(org_slug, quota.terms)


def load_context(uow: UnitOfWork, projects: Collection[tuple[str, str]], *, default_pool: str) -> AdmissionContext:
    """Read everything that `admit` needs for the jobs of one call, with one query.

    Args:
        projects: Pairs of an organization's slug and a project's slug.
        default_pool: The slug of the pool of projects that name none.
    """
    org_slugs, project_slugs = (list({pair[place] for pair in projects}) for place in (0, 1))
    return _context(uow, _TENANTS.all(project_slugs, default_pool, org_slugs), default_pool)


def load_context_of_job(uow: UnitOfWork, job: Job, *, priority: int | None, default_pool: str) -> AdmissionContext:
    """Read everything that `admit` needs for a new job, and the job's lane, with one query.

    Args:
        uow: The unit of work of the operation. The lane is registered there if it exists.
        job: The new job, not yet admitted.
        priority: The requested priority, or None for that of the plan.
        default_pool: The slug of the pool of projects that name none.
    """
    requirements = sorted(job.requirements)
    rows = _TENANT.all(
        job.project_slug,
        default_pool,
        job.job_type,
        requirements,
        DEFAULT_ISOLATION,
        default_pool,
        priority,
        job.concurrency_key,
        str(job.source_address or ""),
        job.org_slug,
    )
    for row in rows:
        if row.lane_id is not None:
            key = LaneKey(
                row.lane_pool,
                row.lane_priority,
                job.org_slug,
                job.project_slug,
                row.lane_address,
                job.concurrency_key,
                job.job_type,
                row.lane_isolation,
                tuple(requirements),
            )
            uow.lane_ids[key] = row.lane_id
    return _context(uow, rows, default_pool)


def _context(uow: UnitOfWork, rows: Sequence[TenantRow], default_pool: str) -> AdmissionContext:
    context = AdmissionContext(uow, rows[0].now if rows else database_now(), {}, {}, {}, default_pool)
    for row in rows:
        slug = row.organization.slug
        context.organizations[slug] = row.organization
        if slug not in context.quotas:
            context.quotas[slug] = remaining_quota_in(row.organization, row, recounted=slug in uow.recounted)
        if row.project is not None:
            context.projects[slug, row.project.slug] = row.project
        if row.pool is not None:
            context.pools[row.pool.slug] = row.pool
    return context


def admit(
    *,
    org_slug: str,
    project_slug: str,
    spec: JobSpec,
    context: AdmissionContext,
    pool: str | None = None,
    priority: int | None = None,
) -> Placement:
    """Check the admission rules of document 000 in order.

    Args:
        org_slug: The organization of the job.
        project_slug: The project of the job.
        spec: The specification of the job.
        context: The rows that were read for this call.
        pool: The requested pool, or None for that of the project.
        priority: The requested priority, or None for that of the plan.

    Returns:
        The scheduling fields of the job.

    Raises:
        NotFound: The organization does not exist.
        FeatureNotEnabled: The job type needs hosted runtime analysis, which the organization has not.
        ProjectNotEnabled: The project does not exist, or is disabled and the job type needs an enabled one. Both have
            one error: a caller without access must not learn which projects exist.
        RepositoryNotAllowed: The project does not allow the repository.
        TimeoutAbovePlan: The timeout exceeds that of the plan.
        PoolForbidden: The pool is not that of the project. It may belong to another tenant.
        PriorityForbidden: The priority exceeds that of the plan.
        Invalid: The payload does not match the schema of the organization, names no valid time for a bundle, or names
            no version of a pack.
        PayloadDigestMismatch: The version of the pack has another plan than the payload says.
    """
    organization = context.organizations.get(org_slug)
    if organization is None:
        raise NotFound(f"The organization {org_slug} does not exist.")
    job_type = JOB_TYPES[spec.job_type]
    if job_type.needs_hosted_analysis and not organization.hosted_runtime_analysis:
        raise FeatureNotEnabled(f"Hosted runtime analysis is not enabled for the organization {org_slug}.")
    project = context.projects.get((org_slug, project_slug))
    if project is None or (job_type.needs_enabled_project and not project.enabled):
        raise ProjectNotEnabled(f"The project {org_slug}/{project_slug} does not exist or is not enabled.")
    if spec.source and not project.allows(*spec.source.repository):
        repository = "/".join(spec.source.repository)
        raise RepositoryNotAllowed(f"The project {org_slug}/{project_slug} does not allow the repository {repository}.")
    if spec.timeout_seconds > organization.plan.max_timeout_seconds:
        limit = organization.plan.max_timeout_seconds
        raise TimeoutAbovePlan(f"timeout_seconds: the plan allows at most {limit} seconds.", max_timeout_seconds=limit)
    if isinstance(spec, PayloadSpec):
        _require_valid_export(spec)
        require_matching_payload(organization, spec)
    placement = _placement(organization, project, spec, context)
    if isinstance(spec, PayloadSpec) and spec.job_type == PACK_RUN:
        placement = replace(placement, pack=require_pack(organization, spec.payload))
    if pool not in {None, placement.pool}:
        raise PoolForbidden(f"pool: jobs of the project {org_slug}/{project_slug} cannot use the pool {pool}.")
    if priority is None:
        return placement
    _require_priority(organization, priority, context)
    return replace(placement, priority=priority)


def readmit(uow: UnitOfWork, job: Job, *, limited: bool) -> dict[str, Any]:
    """Check today's rules for a new attempt of this job.

    An attempt that people request is a new request: the organization, the project, the repository list and the plan
    may have changed since the job was submitted. The priority stays, also if an operator has raised it.

    Args:
        job: The attempt before.
        limited: Whether the organization's submit quota counts the new attempt and may refuse it.

    Returns:
        The fields in which the new attempt differs from the one before.

    Raises:
        LifecycleError: Any error of `admit`.
        QueueFull: The organization has as many waiting jobs as its plan allows.
        SubmitRateExceeded: The organization submits faster than its plan allows.
    """
    context = load_context(uow, [(job.org_slug, job.project_slug)], default_pool=settings.DEFAULT_POOL)
    spec = JOB_TYPES[job.job_type].from_job(job)
    placement = admit(org_slug=job.org_slug, project_slug=job.project_slug, spec=spec, context=context)
    if limited:
        context.reserve_quota(job.org_slug)
    return {
        "pool": placement.pool,
        "least_isolation": placement.least_isolation,
        "limited_by_address": placement.limited_by_address,
    }


def _require_priority(organization: Organization, priority: int, context: AdmissionContext) -> None:
    limit = organization.plan.priority
    if priority <= limit or (priority == EMERGENCY and context.allows_emergency(organization.slug)):
        return
    plan = organization.plan
    message = f"priority: the plan {plan} allows at most {priority_name(limit)}."
    if priority == EMERGENCY:
        message += " Emergency jobs need an emergency limit, which an operator sets for the organization."
    else:
        message += (
            f" An administrator of the server raises it: `manage.py plan change {plan} --priority …`, or the admin."
        )
    raise PriorityForbidden(message)


def _require_valid_export(spec: PayloadSpec) -> None:
    if spec.job_type == EXPORT and is_audit_bundle(spec.payload) and (errors := bundle_errors(spec.payload)):
        raise Invalid({"payload": errors})


def _placement(organization: Organization, project: Project, spec: JobSpec, context: AdmissionContext) -> Placement:
    pool_of_type = JOB_TYPES[spec.job_type].pool
    slug = (pool_of_type(spec) if pool_of_type else None) or project.pool or context.default_pool
    pool = context.pools.get(slug)
    isolation = project.least_isolation or (pool.least_isolation if pool else DEFAULT_ISOLATION)
    return Placement(
        priority=organization.plan.priority,
        pool=slug,
        least_isolation=spec.least_isolation or isolation,
        limited_by_address=organization.plan.one_per_address,
        trace=_trace(spec, project, pool),
    )


def _trace(spec: JobSpec, project: Project, pool: Pool | None) -> JobTrace:
    """Return the level of trace of a new job: that of the job, its project, its pool, or its type, in this order."""
    levels = JOB_TYPES[spec.job_type].trace_levels
    said = spec.trace or project.trace or (pool.trace if pool else "")
    return next((level for level in levels if level == said), levels[0])
