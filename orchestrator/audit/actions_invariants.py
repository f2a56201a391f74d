"""Invariants of workflow jobs: steps end with their job, and a token was used by the runner that has or had the job."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.states import OPEN_STEP_STATUSES

ACTIONS_INVARIANTS = (
    Invariant(
        "A1",
        "The steps of an ended job have ended.",
        f"""SELECT j.job_ulid || '/' || s.index FROM runtime_job_steps s JOIN runtime_jobs j USING (job_ulid)
            WHERE j.finished_at IS NOT NULL AND s.status IN ({listed(OPEN_STEP_STATUSES)})""",
    ),
    Invariant(
        "A2",
        "A step belongs to a job.",
        """SELECT s.id::text FROM runtime_job_steps s
            WHERE NOT EXISTS (SELECT FROM runtime_jobs j WHERE j.job_ulid = s.job_ulid)""",
    ),
    Invariant(
        "A3",
        "A token was used by a runner that has or had the job under a lease.",
        """SELECT used.job_id || ' by ' || used.runner_id
             FROM (SELECT DISTINCT job_id, runner_id FROM actions_used_tokens) used
             JOIN runtime_jobs j ON j.id = used.job_id
            WHERE NOT EXISTS (SELECT FROM runtime_worker_leases l JOIN workers_worker w ON w.worker_id = l.worker_id
                               WHERE l.job_ulid = j.job_ulid AND w.id = used.runner_id)""",
    ),
    Invariant(
        "A4",
        "A job that a workflow runner has begun has a used token, unless the runner started another chain of tokens.",
        """SELECT j.job_ulid
             FROM runtime_worker_leases l
             JOIN workers_worker w ON w.worker_id = l.worker_id
             JOIN actions_runners r ON r.worker_id = w.id
             JOIN runtime_jobs j ON j.job_ulid = l.job_ulid
            WHERE l.acknowledged_at > clock_timestamp() - interval '29 days'
              AND NOT EXISTS (SELECT FROM actions_used_tokens u WHERE u.job_id = j.id AND u.runner_id = w.id
                                 AND u.expires_at > clock_timestamp() - interval '30 days')
              AND NOT EXISTS (SELECT FROM actions_token_chains c WHERE c.job_id = j.id)""",
    ),
)
