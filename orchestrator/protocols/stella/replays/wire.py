"""JSON of replays. Pure functions: they run no query."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.evidence.replay_models import Replay
from orchestrator.protocols.stella.jobs.filters import level_of
from orchestrator.protocols.stella.jobs.wire import job_uuid
from runtime_jobs.models import Job


def serialize_replay_record(row: Replay, job: Job) -> dict[str, Any]:
    """Return the record of a replay (section 7.3).

    Args:
        row: The replay.
        job: Its first attempt.
    """
    return {
        "jobId": job_uuid(row.job_ulid),
        "replayOf": job_uuid(row.replay_of_ulid),
        "priority": level_of(job.priority),
        "reason": row.reason,
        "requestedBy": row.requested_by.partition(":")[2],
        "cursors": job.spec.get("cursors", {}),
        "sealed": row.is_sealed,
    }


def serialize_replay(row: Replay, job: Job) -> dict[str, Any]:
    """Return a replay with its verdict. The arguments are those of `serialize_replay_record`."""
    return serialize_replay_record(row, job) | {
        "verdict": row.verdict,
        "difference": row.difference,
        "reasons": row.reasons or row.caveats,
        "notes": row.notes,
        "createdAt": format_timestamp(row.created_at),
        "decidedAt": format_timestamp(row.decided_at),
    }
