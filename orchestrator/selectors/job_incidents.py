"""Finds the open incidents of failed jobs. An incident of a job belongs to the attempt that failed."""

from collections.abc import Sequence

from django.db.models import Exists, OuterRef, QuerySet

from orchestrator.incidents.models import Incident
from runtime_jobs.models import Job
from runtime_jobs.states import JobState

JOB = "job"  # the kind of the incidents of jobs


def open_incidents(jobs: Sequence[Job]) -> dict[str, Incident]:
    """Return the open incidents of these jobs by the ids of the jobs, with one query, and none if no job has failed."""
    failed = [job.job_ulid for job in jobs if job.state == JobState.FAILED]
    if not failed:
        return {}
    rows = open_job_incidents().filter(job_ulid__in=failed)
    return {str(incident.job_ulid): incident for incident in rows}


def open_job_incidents() -> QuerySet[Incident]:
    """Return the open incidents of all jobs."""
    return Incident.objects.filter(kind=JOB, resolved_at__isnull=True)


def has_open_incident() -> Exists:
    """Return the condition that a job of a query has an open incident."""
    return Exists(open_job_incidents().filter(job_ulid=OuterRef("job_ulid")))
