"""Object types of quotas, sources and the dashboard."""

import strawberry

from orchestrator.protocols.stella.graph.object_types import AuthorObject, DateTime, graph_type


@graph_type
class EmergencyQuotaObject:
    """The limit of jobs that skip the queue."""

    max_active: int
    skip_queue: bool


@graph_type
class QuotaPriorityObject:
    """Limits by priority."""

    emergency: EmergencyQuotaObject | None


@graph_type
class QuotaObject:
    """The quota of a tenant and job type, and its use. Null is no limit."""

    id: strawberry.ID
    tenant: str
    job_type: str
    max_active: int | None
    max_per_hour: int | None
    burst: int | None
    priority: QuotaPriorityObject
    active: int
    started_last_hour: int
    next_eligible_at: DateTime | None
    set_by: AuthorObject | None
    set_at: DateTime | None
    version: str


@graph_type
class QuotaPageObject:
    """A page of quotas."""

    results: list[QuotaObject]
    next: str | None


@graph_type
class SourceObject:
    """A source of jobs: a tenant, one of its job types or one of its projects."""

    source_id: strawberry.ID
    tenant: str | None
    job_type: str | None
    project: str | None
    status: str
    until: DateTime | None
    max_per_hour: int | None
    burst: int | None
    set_by: AuthorObject | None
    set_at: DateTime | None
    reason: str
    queued: int


@graph_type
class SourcePageObject:
    """A page of sources."""

    results: list[SourceObject]
    next: str | None


@graph_type
class JobTotalsObject:
    """Jobs that have not ended, by status."""

    created: int
    queued: int
    throttled: int
    leased: int
    running: int


@graph_type
class EndedTotalsObject:
    """Jobs that ended in the last hour."""

    completed: int
    failed: int
    canceled: int
    queue_seconds: float | None
    run_seconds: float | None


@graph_type
class JobTypeTotalsObject:
    """The numbers of one job type."""

    job_type: str
    jobs: JobTotalsObject
    oldest_queued_at: DateTime | None
    last_hour: EndedTotalsObject


@graph_type
class FailureTotalsObject:
    """Failures of the last hour for one reason."""

    reason: str
    count: int


@graph_type
class RestrictedSourceObject:
    """A source that is paused or throttled."""

    source_id: strawberry.ID
    status: str
    until: DateTime | None
    set_by: AuthorObject | None
    reason: str


@graph_type
class OpenBreakerObject:
    """A circuit breaker that is not closed."""

    tenant: str
    job_type: str
    state: str
    opened_at: DateTime | None
    next_probe_at: DateTime | None


@graph_type
class OpenIncidentObject:
    """An incident that is not resolved."""

    incident_id: strawberry.ID
    kind: str
    status: str
    tenant: str
    job_type: str
    attempt_id: strawberry.ID | None
    reason: str | None
    summary: str
    opened_at: DateTime


@graph_type
class IncidentTotalsObject:
    """Incidents that are not resolved."""

    count: int
    newest: list[OpenIncidentObject]


@graph_type
class DashboardObject:
    """The numbers of now and of the last hour."""

    measured_at: DateTime
    tenants: list[str] | None
    jobs: JobTotalsObject
    last_hour: EndedTotalsObject
    job_types: list[JobTypeTotalsObject]
    failures: list[FailureTotalsObject]
    sources: list[RestrictedSourceObject]
    breakers: list[OpenBreakerObject]
    incidents: IncidentTotalsObject
