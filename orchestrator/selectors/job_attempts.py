"""Reads the newest attempts of many jobs with one statement, each with its worker and its open incident."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from orchestrator.incidents.models import Incident
from orchestrator.selectors.job_incidents import JOB
from runtime_jobs.models import Job

_LARGE: Final = frozenset({"spec", "result"})  # columns of up to a megabyte, which no list needs
_QUERY: Final = """
SELECT {columns}, a.spec ->> 'requested_at' AS read_requested_at,
       (SELECT l.worker_id FROM runtime_worker_leases l
         WHERE l.job_ulid = a.job_ulid ORDER BY l.fence DESC LIMIT 1) AS read_worker_id,
       i.incident_ulid AS read_incident_ulid, i.summary AS read_summary, i.opened_at AS read_opened_at
  FROM unnest(%(roots)s::text[], %(limits)s::integer[]) AS wanted(root, number)
 CROSS JOIN LATERAL (
    SELECT * FROM runtime_jobs j WHERE j.root_job_ulid = wanted.root ORDER BY j.attempt DESC LIMIT wanted.number) AS a
  LEFT JOIN incidents i
    ON a.state = 'failed' AND i.job_ulid = a.job_ulid AND i.kind = %(kind)s AND i.resolved_at IS NULL
 ORDER BY a.root_job_ulid, a.attempt DESC"""


@dataclass(frozen=True)
class ReadAttempt:
    """An attempt of a job.

    Attributes:
        job: The row, without the columns `spec` and `result`.
        worker_id: The worker of its newest lease, or None.
        requested_at: When the client says that the job was requested, or None.
        incident: Its open incident, or None.
    """

    job: Job
    worker_id: str | None
    requested_at: str | None
    incident: Incident | None


def newest_attempts_of(limits: Mapping[str, int]) -> dict[str, list[ReadAttempt]]:
    """Return the newest attempts of jobs by root id, the newest first, with one statement.

    Args:
        limits: How many attempts to read at most, by root id.
    """
    if not limits:
        return {}
    found: dict[str, list[ReadAttempt]] = {}
    values = {"roots": list(limits), "limits": list(limits.values()), "kind": JOB}
    for row in Job.objects.raw(_statement(), values):
        job: Any = row
        found.setdefault(job.root_job_ulid, []).append(
            ReadAttempt(job, job.read_worker_id, job.read_requested_at, _incident(job))
        )
    return found


def _incident(row: Any) -> Incident | None:
    if row.read_incident_ulid is None:
        return None
    return Incident(
        kind=JOB,
        incident_ulid=row.read_incident_ulid,
        job_ulid=row.job_ulid,
        summary=row.read_summary,
        opened_at=row.read_opened_at,
    )


@cache
def _statement() -> str:
    names = [field.column for field in Job._meta.concrete_fields if field.column not in _LARGE]  # noqa: SLF001 documented
    return _QUERY.format(columns=", ".join(f"a.{name}" for name in names))
