"""Records of replays, as they leave the server."""

from typing import Any

from orchestrator.core.datetimes import format_timestamp
from orchestrator.evidence.replay_models import Replay
from runtime_jobs.identifiers import uuid_of


def replay_record(row: Replay) -> dict[str, Any]:
    """Return what an audit bundle has of a replay. `evidence.replay_comparison` confirms its verdict from it.

    Args:
        row: The replay, with its manifests.
    """
    return {
        "jobId": str(uuid_of(row.job_ulid)),
        "replayOf": str(uuid_of(row.replay_of_ulid)),
        "attemptId": str(uuid_of(row.attempt_ulid)),
        "tenant": row.org_slug,
        "jobType": row.job_type,
        "sealed": row.is_sealed,
        "reason": row.reason,
        "requestedBy": row.requested_by,
        "caveats": row.caveats,
        "expected": row.expected,
        "found": row.found,
        "verdict": row.verdict,
        "difference": row.difference,
        "createdAt": format_timestamp(row.created_at),
        "decidedAt": format_timestamp(row.decided_at),
    }
