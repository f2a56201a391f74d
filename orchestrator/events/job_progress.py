"""Reads the progress that workers have reported lately, as events that no history has."""

from datetime import timedelta
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

import orjson
from django.db import connection

from orchestrator.events.pages import Place, StoredEvent
from runtime_jobs.event_types import PROGRESS
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.states import LEASED_STATES

# A heartbeat writes its time before it commits. So each read also covers the time before the previous one.
COVERED: Final = timedelta(seconds=5)
_LATELY = """
SELECT j.updated_at, j.org_slug, j.job_type, j.correlation_id, j.progress::text, j.job_ulid, j.root_job_ulid, j.attempt,
       j.state, l.worker_id, l.lease_ulid
  FROM runtime_jobs j
  JOIN runtime_worker_leases l ON l.job_ulid = j.job_ulid AND l.fence = j.fence
 WHERE j.state = ANY (%(states)s::text[]) AND j.progress IS NOT NULL
   AND j.updated_at > clock_timestamp() - %(covered)s::interval
   AND (%(organizations)s::text[] IS NULL OR j.org_slug = ANY (%(organizations)s::text[]))
 ORDER BY j.updated_at"""


def read_progress(place: Place, *, organizations: list[str] | None) -> list[StoredEvent]:
    """Return the progress of the jobs that workers have changed lately, one event for each job.

    The ids of the events are computed, so they are equal in every process.

    Args:
        place: The place of the events: a client that has them continues there.
        organizations: Only jobs of these; None: of all.
    """
    values: dict[str, Any] = {
        "states": [str(state) for state in LEASED_STATES],
        "covered": COVERED,
        "organizations": organizations,
    }
    with connection.cursor() as cursor:
        cursor.execute(_LATELY, values)
        return [_event(place, *row) for row in cursor.fetchall()]


def _event(place: Place, changed_at: Any, org_slug: str, job_type: str, correlation_id: str, *row: Any) -> StoredEvent:
    progress, job_ulid, root_job_ulid, attempt, state, worker_id, lease_ulid = row
    return StoredEvent(
        place,
        public_id_of("evt", uuid5(NAMESPACE_OID, f"{job_ulid} {changed_at.isoformat()}")),
        PROGRESS,
        changed_at,
        org_slug,
        job_type,
        correlation_id,
        f"worker:{worker_id}",
        orjson.loads(progress),
        job_ulid,
        root_job_ulid,
        attempt,
        state=state,
        worker_id=worker_id,
        lease_id=lease_ulid,
    )
