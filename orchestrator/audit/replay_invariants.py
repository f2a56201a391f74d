"""Invariants of replays: each is a job that names the job which it repeats, and has a verdict only after its end."""

from orchestrator.audit.invariant import Invariant, listed
from orchestrator.evidence.replay_models import ReplayVerdict
from orchestrator.incidents.models import IncidentKind

REPLAY_INVARIANTS = (
    Invariant(
        "R1",
        "A job that repeats another one has a row that names it, and its retries repeat the same job.",
        """SELECT r.job_ulid FROM job_replays r LEFT JOIN runtime_jobs j USING (job_ulid)
            WHERE j.replay_of_job_ulid IS DISTINCT FROM r.replay_of_ulid
           UNION
           SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN job_replays r ON r.job_ulid = j.root_job_ulid
            WHERE j.replay_of_job_ulid IS NOT NULL AND j.replay_of_job_ulid IS DISTINCT FROM r.replay_of_ulid""",
    ),
    Invariant(
        "R2",
        "The history of a replay begins with `job.replayed`, and no other history has that event.",
        """SELECT e.job_ulid FROM runtime_job_events e LEFT JOIN job_replays r USING (job_ulid)
            WHERE (e.event_type = 'job.replayed') <> (e.seq = 1 AND r.id IS NOT NULL)""",
    ),
    Invariant(
        "R3",
        "A replay with a verdict has ended.",
        """SELECT r.job_ulid FROM job_replays r WHERE r.verdict IS NOT NULL AND NOT EXISTS (SELECT FROM runtime_jobs j
             WHERE j.root_job_ulid = r.job_ulid AND j.finished_at <= r.decided_at)""",
    ),
    # Retention may have deleted the incident of a replay that diverged.
    Invariant(
        "R4",
        "An incident of a replay belongs to one that diverged.",
        f"""SELECT i.incident_ulid FROM incidents i JOIN runtime_jobs j USING (job_ulid)
              LEFT JOIN job_replays r ON r.job_ulid = j.root_job_ulid
             WHERE i.kind IN ({listed([str(IncidentKind.REPLAY)])})
               AND r.verdict IS DISTINCT FROM {listed([str(ReplayVerdict.DIVERGED)])}""",
    ),
)
