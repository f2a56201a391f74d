"""The table of bulk actions: what each of them applies to, and the operation that it calls for each target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat

from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.evidence.replays import ReplayRequest, replay
from orchestrator.incidents.models import Incident, IncidentKind
from orchestrator.incidents.operations import resolve_incident
from orchestrator.services import cancellation, retries
from runtime_jobs.models import IdempotencyKey, Job
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import LEASED_STATES, SETTLING_STATES, WAITING_STATES, CancelReason, JobState

JOB, INCIDENT = "job", "incident"
Filters = Mapping[str, Any]


@dataclass(frozen=True)
class BulkActionKind:
    """An action.

    Attributes:
        name: The name in the API.
        subject: The kind of its targets: `job` or `incident`.
        candidates: Returns the rows of an organization to which the operation may apply.
        apply: Calls the operation for one target. It may be called again for the same target, after a crash, and must
            have no further effect then.
    """

    name: str
    subject: str
    candidates: Callable[[str], QuerySet[Any]]
    apply: Callable[[BulkAction, str], object]


def _cancelable(org_slug: str) -> QuerySet[Job]:
    # In the terms of the partial indexes. A job whose cancel was requested is not counted again.
    states = [*WAITING_STATES, *LEASED_STATES, *SETTLING_STATES]
    jobs = Job.objects.of_organizations([org_slug]).filter(state__in=states, cancel_requested_at=None)
    return jobs.exclude(state=JobState.PROCESSING)  # a result that has arrived is not canceled


def _cancel(action: BulkAction, job_ulid: str) -> object:
    is_operator = action.actor_kind == "operator"
    return cancellation.cancel(
        job_ulid=job_ulid,
        actor=action.actor,
        deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        reason=CancelReason.OPERATOR if is_operator else CancelReason.REQUESTED,
        message=action.reason,
    )


def _retryable(org_slug: str) -> QuerySet[Job]:
    job_types = [name for name, kind in JOB_TYPES.items() if kind.is_retryable]
    jobs = Job.objects.of_organizations([org_slug]).of_types(job_types)
    newer = Job.objects.filter(retry_of_job_ulid=OuterRef("job_ulid"))
    ended = jobs.filter(finished_at__isnull=False, state__in=[JobState.FAILED, JobState.CANCELED])
    return ended.exclude(Exists(newer))


def _retry(action: BulkAction, job_ulid: str) -> object:
    key = _idempotency(action, f"retry {job_ulid}")
    return retries.retry(job_ulid=job_ulid, actor=action.actor, reason=action.reason, idempotency=key)


def _replayable(org_slug: str) -> QuerySet[Job]:
    job_types = [name for name, kind in JOB_TYPES.items() if kind.manifest is not None]
    jobs = Job.objects.of_organizations([org_slug]).of_types(job_types)
    newer = Job.objects.filter(retry_of_job_ulid=OuterRef("job_ulid"))
    # Replays would otherwise be replayed by each action that follows them.
    return jobs.filter(finished_at__isnull=False, replay_of_job_ulid=None).exclude(Exists(newer))


def _replay(action: BulkAction, job_ulid: str) -> object:
    """Repeat a job after the replay of the target before, however that ends: replays keep the order of their jobs."""
    request = ReplayRequest(
        root_ulid=Job.objects.values_list("root_job_ulid", flat=True).get(job_ulid=job_ulid),
        reason=action.reason,
        actor=action.actor,
        after_ulid=_replay_before(action, job_ulid),
        source_address=action.source_address,
    )
    return replay(request, idempotency=_idempotency(action, _replay_of(job_ulid)))


def _replay_before(action: BulkAction, job_ulid: str) -> str | None:
    """Return the replay of the nearest target before this one that was not refused: it has bound its key."""
    key = _idempotency(action, _replay_of(job_ulid))
    operation = Concat(Value(_replay_of("")), OuterRef("subject_ulid"))
    bound = IdempotencyKey.objects.filter(principal=key.principal, key=key.key, operation=operation)
    targets = BulkTarget.objects.filter(bulk_action=action).order_by("-pk")
    before = targets.filter(pk__lt=targets.filter(subject_ulid=job_ulid).values("pk")[:1])
    replays = before.annotate(replay_ulid=Subquery(bound.values("result_id"))).exclude(replay_ulid=None)
    return replays.values_list("replay_ulid", flat=True).first()


def _replay_of(job_ulid: str) -> str:
    return f"replay {job_ulid}"


def _idempotency(action: BulkAction, operation: str) -> IdempotentRequest:
    """Return the key of one target: after a crash the operation is called again, and must have no further effect."""
    return IdempotentRequest(f"bulk:{action.bulk_action_ulid}", operation, action.bulk_action_ulid, fingerprint="")


def _resolvable(org_slug: str) -> QuerySet[Incident]:
    return Incident.objects.unresolved().filter(org_slug=org_slug).exclude(kind=IncidentKind.BREAKER)


def _resolve(action: BulkAction, incident_ulid: str) -> object:
    return resolve_incident(
        incident_ulid=incident_ulid,
        cause=Cause(action.actor, action.reason, source_address=action.source_address),
    )


ACTIONS: Final = {
    kind.name: kind
    for kind in (
        BulkActionKind("cancel", JOB, _cancelable, _cancel),
        BulkActionKind("retry", JOB, _retryable, _retry),
        BulkActionKind("replay", JOB, _replayable, _replay),
        BulkActionKind("resolve", INCIDENT, _resolvable, _resolve),
    )
}
