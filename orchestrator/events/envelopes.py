"""Event envelopes (document 004, section 6.1): one form of an event for streams, pages and everything that leaves.

Pure functions. No other module renders an envelope, so that each copy of an event has the same members and values.
"""

import re
from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.events.pages import OPERATOR, StoredEvent
from runtime_jobs.event_types import CONSUMERS, DASHBOARD, PROGRESS
from runtime_jobs.events import BINDING_NAMES
from runtime_jobs.identifiers import fingerprint, is_id, uuid_of
from runtime_jobs.orchestration_status import STATUS_OF_STATE
from runtime_jobs.specs.payload import PACK_RUN
from runtime_jobs.states import FINAL_STATES

_WORD = re.compile(r"_([a-z0-9])")


def consumers_of(event_type: str) -> tuple[str, ...]:
    """Return the consumers of an event type."""
    return CONSUMERS.get(event_type, (DASHBOARD,))


def envelope_of(event: StoredEvent) -> dict[str, Any]:
    """Return the envelope of an event. Members without a value are null."""
    if event.place.kind == OPERATOR:
        return _envelope(event, job_id=None, idempotency_key=str(uuid_of(event.event_id)), payload=_action(event))
    assert event.job_id is not None  # noqa: S101 only events of operators have none
    attempt_id = str(uuid_of(event.job_id))
    is_recorded = event.seq is not None  # else it is the progress of a heartbeat
    return _envelope(
        event,
        job_id=str(uuid_of(event.root_job_id or event.job_id)),
        idempotency_key=f"{attempt_id}:{event.seq if is_recorded else uuid_of(event.event_id)}",
        payload=_payload(event),
        provenance=_provenance(event),
        integrity={
            "attempt": event.attempt,
            "sequence": event.seq,
            "prevHash": event.prev_hash or None,
            "hash": event.hash,
        }
        if is_recorded
        else None,
    )


def _envelope(
    event: StoredEvent,
    *,
    job_id: str | None,
    idempotency_key: str,
    payload: dict[str, Any],
    provenance: dict[str, Any] | None = None,
    integrity: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "eventId": str(uuid_of(event.event_id)),
        "eventType": event.event_type,
        "timestamp": format_timestamp(event.created_at),
        "tenant": event.org_slug,
        "jobId": job_id,
        "jobType": event.job_type,
        "correlationId": event.correlation_id,
        "idempotencyKey": idempotency_key,
        "payload": payload,
        "provenance": provenance,
        "integrity": integrity,
    }


def _payload(event: StoredEvent) -> dict[str, Any]:
    """Return what the event has changed.

    Whether a queued job is throttled, and whether a failed one is an incident, depends on other rows. The status is
    therefore that of the state.
    """
    has_ended = event.state in FINAL_STATES
    # What binds the rows of the job says nothing to a reader.
    details = {name: value for name, value in event.details.items() if name not in BINDING_NAMES}
    if event.event_type == PROGRESS:
        details = {"phase": event.state, **details}
    return {
        "status": None if event.state is None else str(STATUS_OF_STATE[event.state]),
        "duration": None if event.seconds is None else round(event.seconds, 3),
        "result": {"verdict": event.verdict, "exitCode": event.exit_code} if has_ended else None,
        "actor": event.actor,
        "details": _details(details),
    }


def _action(event: StoredEvent) -> dict[str, Any]:
    """Return the payload of an event of an operator or of the server: what was changed, by whom and why."""
    return {"actor": event.actor, "details": _details(event.details)}


def _provenance(event: StoredEvent) -> dict[str, Any]:
    """Return the worker and the lease. A lease id is a capability, so the envelope has its fingerprint."""
    return {
        "workerId": event.worker_id,
        "leaseId": None if event.lease_id is None else fingerprint(event.lease_id),
        "taskRunnerId": event.worker_id if event.job_type == PACK_RUN else None,
    }


def _details(details: dict[str, Any]) -> dict[str, Any]:
    """Return recorded details with names and job ids as in document 004, such as `retryOf` and UUIDs."""
    return {_WORD.sub(lambda found: found[1].upper(), name): _value(value) for name, value in details.items()}


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _details(value)
    if isinstance(value, list):
        return [_value(inner) for inner in value]
    return str(uuid_of(value)) if isinstance(value, str) and is_id(value, "rtj") else value
