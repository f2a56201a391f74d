"""Invariants of incidents: an unresolved incident of a job belongs to a failed job that nothing retries."""

from orchestrator.audit.invariant import Invariant, listed
from orchestrator.incidents.models import IncidentKind
from runtime_jobs.states import JobState

INCIDENT_INVARIANTS = (
    # A job that retention has deleted may leave its incident.
    Invariant(
        "N1",
        "An unresolved incident of a job belongs to a failed job without a newer attempt.",
        f"""SELECT i.incident_ulid FROM incidents i JOIN runtime_jobs j USING (job_ulid)
             WHERE i.kind IN ({listed([str(IncidentKind.JOB)])}) AND i.resolved_at IS NULL
               AND (j.state NOT IN ({listed([str(JobState.FAILED)])})
                    OR EXISTS (SELECT FROM runtime_jobs newer WHERE newer.retry_of_job_ulid = j.job_ulid))""",
    ),
    Invariant(
        "N2",
        "An incident that is resolved or acknowledged names the actor.",
        """SELECT incident_ulid FROM incidents
            WHERE (resolved_at IS NULL) <> (resolved_by = '') OR (acknowledged_at IS NULL) <> (acknowledged_by = '')""",
    ),
)
