"""Invariants of dependencies: no dependent is forgotten, and none starts too early."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.states import FINAL_STATES

# The states of the jobs that a job depends on, by their newest attempts.
_NEEDED = """SELECT DISTINCT ON (d.job_ulid, d.on_job_ulid)
                    d.job_ulid AS root, d.on_job_ulid AS needed, d.needs_success, a.state
               FROM runtime_job_dependencies d JOIN runtime_jobs a ON a.root_job_ulid = d.on_job_ulid
              ORDER BY d.job_ulid, d.on_job_ulid, a.attempt DESC"""

DEPENDENCY_INVARIANTS = (
    Invariant(
        "D1",
        "A blocked job depends on a job that has not ended, is marked for a check, or belongs to a held workflow run.",
        f"""SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN ({_NEEDED}) n ON n.root = j.root_job_ulid
             WHERE j.state = 'blocked' AND NOT EXISTS
                (SELECT FROM runtime_ended_dependencies e JOIN runtime_job_dependencies d
                     ON d.on_job_ulid = e.root_job_ulid
                  WHERE d.job_ulid = j.root_job_ulid AND e.looked_to < j.id)
               AND NOT EXISTS (SELECT FROM workflow_runs r WHERE r.batch_id = j.batch_id AND r.hold <> '')
             GROUP BY j.job_ulid
            HAVING count(n.state) FILTER (WHERE n.state NOT IN ({listed(FINAL_STATES)})) = 0
                OR count(n.state) FILTER (WHERE n.needs_success AND n.state IN ('failed', 'canceled')) > 0""",
    ),
    Invariant(
        "D2",
        "A job that was queued or leased depends only on jobs that ended as it needs them.",
        f"""SELECT j.job_ulid FROM runtime_jobs j JOIN ({_NEEDED}) n ON n.root = j.root_job_ulid
             WHERE (j.state = 'queued' OR j.fence > 0)
               AND CASE WHEN n.needs_success THEN n.state <> 'succeeded'
                        ELSE n.state NOT IN ({listed(FINAL_STATES)}) END""",
    ),
    Invariant(
        "D3",
        "A job depends on older jobs of its organization only, so there are no cycles.",
        """SELECT j.job_ulid FROM runtime_job_dependencies d
             JOIN runtime_jobs j USING (job_ulid) JOIN runtime_jobs o ON o.job_ulid = d.on_job_ulid
            WHERE o.id >= j.id OR o.org_slug <> j.org_slug OR j.attempt > 1 OR o.attempt > 1""",
    ),
    Invariant(
        "D4",
        "A blocked job is not the head of a lane or queue.",
        """SELECT j.job_ulid FROM runtime_jobs j JOIN lane_heads l ON l.head_id = j.id WHERE j.state = 'blocked'
           UNION
           SELECT j.job_ulid FROM runtime_jobs j JOIN queue_heads q ON q.head_id = j.id WHERE j.state = 'blocked'""",
    ),
)
