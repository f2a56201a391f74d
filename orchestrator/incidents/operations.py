"""Incidents: opened by other operations, acknowledged and resolved by operators, or resolved by a retry of the job."""

from datetime import datetime

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import build_operator_event, record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.models import Incident, IncidentKind, IncidentStatus
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import IncidentOfBreaker, NotFound, ResourceConflict
from runtime_jobs.events import SYSTEM, Actor
from runtime_jobs.models import Job
from runtime_jobs.states import ESCALATED_FAILURES, JobState

MAX_TEXT = 500
RETRIED = "The job was retried."


@operation
def acknowledge_incident(
    _: UnitOfWork,
    *,
    incident_ulid: str,
    cause: Cause,
) -> Incident:
    """Record that a person works on an incident. It stays unresolved. A second call changes nothing.

    Args:
        incident_ulid: The incident.

    Raises:
        NotFound: The incident does not exist.
        ResourceConflict: The incident is resolved.
    """
    incident = _lock(incident_ulid)
    if incident.status == IncidentStatus.RESOLVED:
        raise ResourceConflict("The incident is resolved already.")
    if incident.status == IncidentStatus.OPEN:
        incident.acknowledged_at, incident.acknowledged_by = cause.now or database_now(), str(cause.actor)
        incident.save(update_fields=["acknowledged_at", "acknowledged_by"])
        _record(incident, IncidentStatus.OPEN, cause)
    return incident


@operation
def resolve_incident(
    _: UnitOfWork,
    *,
    incident_ulid: str,
    cause: Cause,
) -> Incident:
    """Resolve an incident. Its job stays failed. A second call changes nothing.

    Args:
        incident_ulid: The incident.

    Raises:
        NotFound: The incident does not exist.
        IncidentOfBreaker: The incident is that of a breaker, which resolves it when it closes.
    """
    incident = _lock(incident_ulid)
    if incident.status == IncidentStatus.RESOLVED:
        return incident
    if incident.kind == IncidentKind.BREAKER:
        raise IncidentOfBreaker(
            "The incident of a breaker is resolved when the breaker closes. Reset it with POST /v1/breakers/reset."
        )
    resolve(incident, cause)
    return incident


def open_incident(
    uow: UnitOfWork,
    kind: IncidentKind,
    *,
    org_slug: str,
    job_type: str,
    summary: str,
    now: datetime,
    job_ulid: str | None = None,
    webhook_ulid: str | None = None,
    worker_ulid: str | None = None,
    reason: str = "",
    actor: Actor = SYSTEM,
) -> Incident:
    """Open an incident with its event in the audit log. Both rows are stored when the operation ends.

    Args:
        kind: The cause.
        org_slug: The organization, or an empty text.
        job_type: The job type, or an empty text.
        summary: A sentence for people.
        now: Timestamp of the incident.
        job_ulid: The job, if the incident concerns one. The caller makes sure that it has no unresolved incident.
        webhook_ulid: The webhook, if the incident concerns one, likewise.
        worker_ulid: The worker, if the incident concerns one, likewise.
        reason: The reason of the job's failure.
        actor: The cause of the event.
    """
    incident = Incident(
        kind=kind,
        org_slug=org_slug,
        job_type=job_type,
        job_ulid=job_ulid,
        webhook_ulid=webhook_ulid,
        worker_ulid=worker_ulid,
        reason=reason,
        summary=summary[:MAX_TEXT],
        opened_at=now,
    )
    event = build_operator_event(
        "incident.opened",
        target=f"incident:{incident.incident_ulid}",
        cause=Cause(actor, incident.summary),
        after=_facts(incident) | {"status": str(incident.status)},
        org_slug=org_slug or None,
        job_type=job_type or None,
        now=now,
    )
    uow.extra_rows += [incident, event]
    return incident


def open_for_failed_job(uow: UnitOfWork, job: Job, *, now: datetime) -> None:
    """Open the incident of a job that failed through no fault of its own. The caller has found that nothing retries it.

    Args:
        job: The locked job.
        now: Timestamp of the failure.
    """
    if job.state != JobState.FAILED or job.failure_reason not in ESCALATED_FAILURES:
        return
    uow.require_transaction()
    open_incident(
        uow,
        IncidentKind.JOB,
        org_slug=job.org_slug,
        job_type=job.job_type,
        job_ulid=job.job_ulid,
        reason=str(job.failure_reason),
        summary=f"A {job.job_type} job of {job.org_slug}/{job.project_slug} failed: {job.failure_reason}.",
        now=now,
    )


def resolve_for_retry(job: Job, *, actor: Actor, now: datetime) -> None:
    """Resolve the incidents of a job that gets a new attempt.

    Args:
        job: The attempt before, which the caller has locked.
        actor: The cause of the retry.
        now: Timestamp of the retry.
    """
    for incident in Incident.objects.unresolved().filter(job_ulid=job.job_ulid).select_for_update(no_key=True):
        resolve(incident, Cause(actor, RETRIED, now=now))


def resolve_for_webhook(webhook_ulid: str, *, actor: Actor, resolution: str, now: datetime) -> None:
    """Resolve the incident that days of failure have opened, if there is one.

    Args:
        webhook_ulid: The webhook, which the caller has locked.
        actor: The cause of the change.
        resolution: How it was resolved.
        now: Timestamp of the change.
    """
    found = Incident.objects.unresolved().filter(webhook_ulid=webhook_ulid)
    for incident in found.select_for_update(no_key=True):
        resolve(incident, Cause(actor, resolution, now=now))


def resolve(incident: Incident, cause: Cause) -> None:
    """Resolve an incident that the caller has locked, and record that. The reason of the cause is the resolution."""
    before, now = incident.status, cause.now or database_now()
    incident.resolved_at, incident.resolved_by, incident.resolution = now, str(cause.actor), cause.reason[:MAX_TEXT]
    incident.save(update_fields=["resolved_at", "resolved_by", "resolution"])
    _record(incident, before, cause.at(now))


def _lock(incident_ulid: str) -> Incident:
    incident = Incident.objects.filter(incident_ulid=incident_ulid).select_for_update(no_key=True).first()
    if incident is None:
        raise NotFound("The incident does not exist.")
    return incident


def _record(incident: Incident, before: IncidentStatus, cause: Cause) -> None:
    record_operator_event(
        f"incident.{incident.status}",
        target=f"incident:{incident.incident_ulid}",
        cause=cause,
        before={"status": str(before)},
        after=_facts(incident) | {"status": str(incident.status)},
        org_slug=incident.org_slug or None,
        job_type=incident.job_type or None,
    )


def _facts(incident: Incident) -> dict[str, str]:
    """Return what readers of the event need to know about the incident."""
    facts = {
        "kind": incident.kind,
        "job_id": incident.job_ulid,
        "webhook_id": incident.webhook_ulid,
        "worker_id": incident.worker_ulid,
        "reason": incident.reason,
    }
    return {name: str(value) for name, value in facts.items() if value}
