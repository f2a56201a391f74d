"""JSON of the dashboard. Pure functions: they run no query."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from leases.models import Breaker, BreakerState, Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.actors import serialize_actor
from orchestrator.incidents.models import Incident
from orchestrator.protocols.stella.sources.names import source_id
from orchestrator.selectors.dashboard import DashboardNumbers, EndedJobs, PresentJobs
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.orchestration_status import STATUS_OF_STATE, OrchestrationStatus
from runtime_jobs.states import JobState

PRESENT = (
    *(OrchestrationStatus.CREATED, OrchestrationStatus.QUEUED, OrchestrationStatus.THROTTLED),
    *(OrchestrationStatus.LEASED, OrchestrationStatus.RUNNING),
)
ENDED = (OrchestrationStatus.COMPLETED, OrchestrationStatus.FAILED, OrchestrationStatus.CANCELED)


def serialize_dashboard(numbers: DashboardNumbers, tenants: Collection[str] | None) -> dict[str, Any]:
    """Return the dashboard of these tenants, or of all tenants."""
    return {
        "measuredAt": format_timestamp(numbers.measured_at),
        "tenants": None if tenants is None else sorted(tenants),
        "jobs": _present(numbers.present),
        "lastHour": _ended(numbers.ended),
        "jobTypes": list(_job_types(numbers)),
        "failures": _failures(numbers.ended),
        "sources": [_restricted_source(limit) for limit in numbers.restrictions],
        "breakers": [_breaker(breaker) for breaker in numbers.breakers],
        "incidents": {
            "count": numbers.incident_count,
            "newest": [_incident(incident) for incident in numbers.incidents],
        },
    }


def _job_types(numbers: DashboardNumbers) -> Iterator[dict[str, Any]]:
    present: dict[str, list[PresentJobs]] = defaultdict(list)
    ended: dict[str, list[EndedJobs]] = defaultdict(list)
    for row in numbers.present:
        present[row.job_type].append(row)
    for finished in numbers.ended:
        ended[finished.job_type].append(finished)
    for job_type in sorted({*present, *ended}):
        queued = (row.oldest for row in present[job_type] if row.state == JobState.QUEUED)
        yield {
            "jobType": job_type,
            "jobs": _present(present[job_type]),
            "oldestQueuedAt": format_timestamp(next(queued, None)),
            "lastHour": _ended(ended[job_type]),
        }


def _present(present: Iterable[PresentJobs]) -> dict[str, int]:
    counts = dict.fromkeys(map(str, PRESENT), 0)
    for row in present:
        counts[OrchestrationStatus.THROTTLED] += row.throttled
        counts[STATUS_OF_STATE[row.state]] += row.number - row.throttled
    return counts


def _ended(ended: Iterable[EndedJobs]) -> dict[str, Any]:
    counts: dict[str, Any] = dict.fromkeys(map(str, ENDED), 0)
    number, queue_seconds, run_seconds = 0, 0.0, 0.0
    for row in ended:
        counts[STATUS_OF_STATE[row.state]] += row.number
        number += row.number
        queue_seconds, run_seconds = queue_seconds + row.queue_seconds, run_seconds + row.run_seconds
    means = (round(queue_seconds / number, 3), round(run_seconds / number, 3)) if number else (None, None)
    return counts | dict(zip(("queueSeconds", "runSeconds"), means, strict=True))


def _failures(ended: Iterable[EndedJobs]) -> list[dict[str, Any]]:
    """Return the failures of the last hour by reason, the most frequent first."""
    counts: Counter[str] = Counter()
    for row in ended:
        if row.state == JobState.FAILED:
            counts[row.reason] += row.number
    return [{"reason": reason, "count": count} for reason, count in counts.most_common()]


def _restricted_source(limit: Limit) -> dict[str, Any]:
    return {
        "sourceId": source_id(LimitTarget(LimitScope(limit.scope), limit.org_slug, limit.key)),
        "status": "paused" if limit.kind == LimitKind.PAUSE else "throttled",
        "until": format_timestamp(limit.until),
        "setBy": serialize_actor(limit.set_by),
        "reason": limit.note,
    }


def _breaker(breaker: Breaker) -> dict[str, Any]:
    return {
        "tenant": breaker.org_slug,
        "jobType": breaker.job_type,
        "state": breaker.state,
        "openedAt": format_timestamp(breaker.opened_at),
        "nextProbeAt": format_timestamp(breaker.cool_until) if breaker.state == BreakerState.OPEN else None,
    }


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "incidentId": str(uuid_of(incident.incident_ulid)),
        "kind": incident.kind,
        "status": str(incident.status),
        "tenant": incident.org_slug,
        "jobType": incident.job_type,
        "attemptId": str(uuid_of(incident.job_ulid)) if incident.job_ulid else None,
        "reason": incident.reason or None,
        "summary": incident.summary,
        "openedAt": format_timestamp(incident.opened_at),
    }
