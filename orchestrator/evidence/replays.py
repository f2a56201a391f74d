"""Executes a job once more to prove its outputs: queues the replay, and compares both when the replay has ended.

A replay is a job of its own. It has the input of the job that it repeats, and no later attempt of that job.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings

from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.operator_events import build_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.evidence.manifests import manifest_of
from orchestrator.evidence.replay_comparison import DIVERGED, MATCH, Difference, ManifestComparison, compare_manifests
from orchestrator.evidence.replay_models import Replay
from orchestrator.incidents.models import IncidentKind
from orchestrator.incidents.operations import open_incident
from orchestrator.services import dependencies, transitions
from orchestrator.services.admission import Placement, admit, load_context
from orchestrator.services.dependencies import NO_DEPENDENCIES, DependencyStatus
from orchestrator.services.retries import RESEND, is_limited
from orchestrator.services.transitions import RETRY_FIELDS, OperationResult
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import InvalidDependency, NotFinal, NotFound, NotReplayable, StoredInputMismatch
from runtime_jobs.events import SCHEDULER, Actor, unbound_parts
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, JobSpec
from runtime_jobs.specs.payload import DIGEST_PREFIX, payload_digest

MAX_ACTOR_LENGTH: Final = 200
MAX_TEXT_LENGTH: Final = 300  # of a value in an event; the row of the replay has the whole value
_INPUT_PARTS: Final = frozenset({"input", "request", "cursors"})
# A replay has its own place in graphs and batches. All other fields of its input are those of the job.
_COPIED: Final = frozenset(RETRY_FIELDS) - {"root_job_ulid", "batch_id", "awaited", "replay_of_job_ulid"}


@dataclass(frozen=True)
class ReplayRequest:
    """A request for a replay.

    Attributes:
        root_ulid: The job to repeat, by its first attempt. Its newest attempt counts.
        reason: Why it is repeated.
        actor: The client or operator.
        priority: The requested priority, or None for that of the plan.
        is_sealed: Whether the replay must be able to prove something: without network, and with fixed inputs only.
        after_ulid: Another job of the organization, such as the replay before, that must end first, however it ends.
        source_address: The client's IP address.
    """

    root_ulid: str
    reason: str
    actor: Actor
    priority: int | None = None
    is_sealed: bool = False
    after_ulid: str | None = None
    source_address: str | None = None


@operation
def replay(
    uow: UnitOfWork,
    request: ReplayRequest,
    *,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> OperationResult:
    """Queue a job that repeats another one, which may also have succeeded. Any number of replays is allowed.

    A client's replay counts as a submit, and is admitted by the rules of a new job.

    Args:
        request: The request.
        idempotency: The idempotency key. The same request again returns the first replay.

    Raises:
        NotFound: The job does not exist.
        NotFinal: The job has not ended.
        NotReplayable: Jobs of this type have no replays, or the replay is sealed and the job is not fixed.
        StoredInputMismatch: The stored input of the job was changed since its submit.
        InvalidDependency: `after_ulid` is no job of the organization.
        LifecycleError: Any error of `admit`.
        QueueFull: The organization has as many waiting jobs as its plan allows.
        SubmitRateExceeded: The organization submits faster than its plan allows.
        IdempotencyConflict: The key was used with another request.
    """
    original, now = _lock_newest_attempt(request.root_ulid, now)
    if idempotency and (first := idempotency.lookup()):
        return OperationResult(Job.objects.get(job_ulid=first), replayed=True)
    _require_ended(original)
    spec, caveats = require_replayable(original, is_sealed=request.is_sealed)
    placement = _admitted(uow, original, spec, request)
    job = _new_job(original, placement, request)
    uow.extra_rows.append(_new_row(job, original, caveats, request, now=now))
    transitions.record_event(
        uow,
        job,
        "job.replayed",
        now=now,
        actor=request.actor,
        replay_of=original.root_job_ulid,
        replayed_attempt=original.attempt,
        reason=request.reason,
        sealed=request.is_sealed,
    )
    cause: dict[str, Any] = {"trigger": job.trigger_kind, "trigger_actor": job.trigger_actor}
    status = _order(original, request.after_ulid)
    transitions.enqueue(uow, job, now=now, actor=request.actor, dependency_status=status, **cause)
    if idempotency:
        idempotency.bind(job.job_ulid, now=now)
    return OperationResult(transitions.mark_changed(uow, job, now))


def _lock_newest_attempt(root_ulid: str, now: datetime | None) -> tuple[Job, datetime]:
    """Lock the newest attempt of a job.

    Raises:
        NotFound: The job does not exist.
    """
    newest = Job.objects.filter(root_job_ulid=root_ulid).order_by("-attempt").values_list("job_ulid", flat=True).first()
    if newest is None:
        raise NotFound("The job does not exist.")
    return transitions.lock_job(newest, now=now)


def _require_ended(job: Job) -> None:
    """Check that an attempt has ended and is the newest one. A retry locks the attempt before it, as the caller has.

    Raises:
        NotFinal: It has not ended, or a newer attempt was queued just now.
    """
    if not job.is_final or Job.objects.filter(retry_of_job_ulid=job.job_ulid).exists():
        status = job.public_status
        raise NotFinal("The job has not ended. Wait for its end, or cancel it first.", job_status=status)


def require_replayable(job: Job, *, is_sealed: bool) -> tuple[JobSpec, tuple[str, ...]]:
    """Check that a job can be repeated, and return its input and what of it is not fixed.

    Args:
        job: The newest attempt of the job, which has ended.
        is_sealed: Whether the replay must prove something.

    Raises:
        NotReplayable: Jobs of this type have no replays, or something is not fixed and the replay is sealed.
        StoredInputMismatch: The stored input is not the one that was submitted.
    """
    job_type = JOB_TYPES[job.job_type]
    if job_type.manifest is None:
        detail = f"Jobs of type {job.job_type} cannot be replayed: they have no manifest that could be compared."
        raise NotReplayable(detail, reasons=[])
    spec = _stored_spec(job)
    caveats = job_type.unpinned(job)
    if is_sealed and caveats:
        detail = f"The job cannot be replayed sealed. {' '.join(caveats)} A replay that is not sealed is possible."
        raise NotReplayable(detail, reasons=list(caveats))
    return spec, caveats


def _stored_spec(job: Job) -> JobSpec:
    """Return the input of a job as it was submitted.

    Raises:
        StoredInputMismatch: The columns hold another input than the digest of the submit binds, or none.
    """
    try:
        spec = JOB_TYPES[job.job_type].from_job(job)
        digest = spec.digest
    except (AttributeError, KeyError, TypeError, ValueError):
        digest = ""
    changed = _INPUT_PARTS.intersection(unbound_parts(job, digest))
    if changed or digest != job.payload_digest or not _has_declared_plan(job):
        raise StoredInputMismatch("The stored input of the job does not have the digest of its submit. It was changed.")
    return spec


def _has_declared_plan(job: Job) -> bool:
    """Return whether the plan of a pack run is the one that its payload names by a digest, if it names one."""
    plan, declared = job.spec.get("plan"), (job.spec.get("payload") or {}).get("planHash")
    return plan is None or declared is None or declared == DIGEST_PREFIX + payload_digest(plan)


def _admitted(uow: UnitOfWork, original: Job, spec: JobSpec, request: ReplayRequest) -> Placement:
    context = load_context(uow, [(original.org_slug, original.project_slug)], default_pool=settings.DEFAULT_POOL)
    placement = admit(
        org_slug=original.org_slug,
        project_slug=original.project_slug,
        spec=spec,
        context=context,
        priority=request.priority,
    )
    if is_limited(request.actor):
        context.reserve_quota(original.org_slug)
    return placement


def _new_job(original: Job, placement: Placement, request: ReplayRequest) -> Job:
    job = Job(**{name: getattr(original, name) for name in _COPIED})
    job.priority, job.pool, job.least_isolation = placement.priority, placement.pool, placement.least_isolation
    job.limited_by_address = placement.limited_by_address
    job.trigger_actor = request.actor.name[:MAX_ACTOR_LENGTH]
    job.source_address = request.source_address
    job.root_job_ulid, job.replay_of_job_ulid = job.job_ulid, original.root_job_ulid
    job.requirements = [name for name in original.requirements if name != RESEND]  # a replay executes its command
    if JOB_TYPES[job.job_type].has_payload:
        job.spec = original.spec | {"requested_at": None, "sealed": request.is_sealed}
    return job


def _new_row(job: Job, original: Job, caveats: tuple[str, ...], request: ReplayRequest, *, now: datetime) -> Replay:
    return Replay(
        job_ulid=job.job_ulid,
        replay_of_ulid=original.root_job_ulid,
        attempt_ulid=original.job_ulid,
        org_slug=job.org_slug,
        job_type=job.job_type,
        is_sealed=request.is_sealed,
        reason=request.reason,
        requested_by=str(request.actor)[:MAX_ACTOR_LENGTH],
        caveats=list(caveats),
        expected=manifest_of(original),  # now: its artifacts may expire before the replay ends
        created_at=now,
    )


def _order(original: Job, after_ulid: str | None) -> DependencyStatus:
    """Return the dependency on the replay before.

    Raises:
        InvalidDependency: It is no job of the organization.
    """
    if after_ulid is None:
        return NO_DEPENDENCIES
    jobs = Job.objects.filter(job_ulid=after_ulid, org_slug=original.org_slug)
    root = jobs.values_list("root_job_ulid", flat=True).first()
    if root is None:
        raise InvalidDependency({"after": [f"{after_ulid} is not a job of this organization."]})
    return dependencies.lock_status([root], any_end=frozenset({root}))


@operation
def compare_replay(uow: UnitOfWork, *, job_ulid: str, now: datetime | None = None) -> Replay | None:
    """Compare a replay that has ended with the job that it repeats, and record the verdict.

    A second call changes nothing. The verdict is an event of the audit log, because the history of a job is closed when
    the job ends. A replay that diverged opens an incident.

    Args:
        job_ulid: The replay, by its first attempt.

    Returns:
        The replay with its verdict, or None: it has one already, or has not ended.
    """
    row = Replay.objects.select_for_update(no_key=True).filter(job_ulid=job_ulid, verdict=None).first()
    newest = Job.objects.filter(root_job_ulid=job_ulid).order_by("-attempt").first()
    if row is None or newest is None or not newest.is_final:
        return None
    found = manifest_of(newest)
    comparison = compare_manifests(row.expected, found, caveats=row.caveats)
    row.found, row.verdict, row.decided_at = found, comparison.verdict, now or database_now()
    row.difference = None if comparison.difference is None else vars(comparison.difference)
    row.reasons, row.notes = list(comparison.reasons), [vars(note) for note in comparison.notes]
    row.save(update_fields=["found", "verdict", "decided_at", "difference", "reasons", "notes"])
    _record_verdict(uow, row, newest, comparison)
    return row


def _record_verdict(uow: UnitOfWork, row: Replay, newest: Job, comparison: ManifestComparison) -> None:
    assert row.decided_at is not None  # noqa: S101 set by the caller
    facts: dict[str, Any] = {
        "job_id": row.job_ulid,
        "replay_of": row.replay_of_ulid,
        "verdict": row.verdict,
        "sealed": row.is_sealed,
        "reasons": list(comparison.reasons),
    }
    if comparison.difference is not None:
        facts["difference"] = _brief(comparison.difference)
    uow.extra_rows.append(
        build_operator_event(
            "replay.matched"
            if comparison.verdict == MATCH
            else "replay.diverged"
            if comparison.verdict == DIVERGED
            else "replay.unverifiable",
            target=f"job:{row.job_ulid}",
            cause=Cause(SCHEDULER),
            after=facts,
            org_slug=row.org_slug,
            job_type=row.job_type,
            now=row.decided_at,
        )
    )
    if comparison.verdict == DIVERGED and comparison.difference is not None:
        open_incident(
            uow,
            IncidentKind.REPLAY,
            org_slug=row.org_slug,
            job_type=row.job_type,
            job_ulid=newest.job_ulid,
            reason=DIVERGED,
            summary=f"The replay {row.job_ulid} of {row.replay_of_ulid} diverged at {comparison.difference.path}.",
            actor=SCHEDULER,
            now=row.decided_at,
        )


def _brief(difference: Difference) -> dict[str, Any]:
    """Return a difference with short values, for an event."""
    return {name: _shortened(value) for name, value in vars(difference).items()}


def _shortened(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[:MAX_TEXT_LENGTH]}…"
