"""Reads the steps of a job with the state of their logs, and the annotations that they have printed."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from runtime_jobs.models import StepAnnotation

# A job of a type without steps may have the logs of several.
_STEPS = """
SELECT coalesce(s.index, l.step), s.id, coalesce(s.step_id, ''), coalesce(s.name, ''), coalesce(s.run, ''),
       coalesce(s.uses, ''), s.status, s.conclusion, s.started_at, s.completed_at,
       coalesce(l.stored_bytes, 0), coalesce(l.is_truncated, false), coalesce(l.annotation_count, 0)
  FROM (SELECT * FROM runtime_job_steps WHERE job_ulid = %(job)s) s
  FULL JOIN (SELECT * FROM step_logs WHERE job_ulid = %(job)s) l ON l.step = s.index
 ORDER BY 1"""


@dataclass(frozen=True)
class StepState:
    """A step of a job as it is at present.

    Attributes:
        index: Its number in the job, from 0.
        key: The key of the `JobStep`; None for a job type without steps, of which only the log is known.
        status: The status, or None likewise.
        log_bytes: The length of its log so far.
        log_is_truncated: The log has reached its limit; the rest was dropped.
        annotation_count: The number of its annotations.
    """

    index: int
    key: int | None
    step_id: str
    name: str
    run: str
    uses: str
    status: str | None
    conclusion: str | None
    started_at: datetime | None
    completed_at: datetime | None
    log_bytes: int
    log_is_truncated: bool
    annotation_count: int

    @property
    def display_name(self) -> str:
        """The name, else the id, else what the step executes."""
        first_line = self.run.strip().partition("\n")[0]
        return self.name or self.step_id or self.uses or first_line[:100] or f"Step {self.index}"


def steps_of(job_ulid: str) -> list[StepState]:
    """Return the steps of a job in their order, with one query.

    Args:
        job_ulid: The job.
    """
    with connection.cursor() as cursor:
        cursor.execute(_STEPS, {"job": job_ulid})
        return [StepState(*row) for row in cursor.fetchall()]


def annotations_of(job_ulid: str, *, after: int = 0, limit: int) -> list[StepAnnotation]:
    """Return the annotations of a job in the order in which they were printed.

    Args:
        job_ulid: The job.
        after: Return only annotations with a higher key.
        limit: Maximum number of annotations.
    """
    rows = StepAnnotation.objects.filter(job_id=job_ulid, pk__gt=after)
    return list(rows.order_by("pk")[:limit])
