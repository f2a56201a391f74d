"""Invariants of workflow runs: an ended run has ended jobs, a held one starts none, and a group executes one run."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.states import FINAL_STATES, LEASED_STATES, JobState

WORKFLOW_INVARIANTS = (
    Invariant(
        "W1",
        "The jobs of a run that has a conclusion have ended, and such a run is not held.",
        f"""SELECT 'run ' || r.id FROM workflow_runs r
             WHERE (r.conclusion IS NOT NULL OR r.completed_at IS NOT NULL)
               AND (r.hold <> '' OR EXISTS (SELECT FROM runtime_jobs j
                    WHERE j.batch_id = r.batch_id AND j.state NOT IN ({listed(FINAL_STATES)})))""",
    ),
    Invariant(
        "W2",
        "A held run has no queued or leased job.",
        f"""SELECT 'run ' || r.id FROM workflow_runs r JOIN runtime_jobs j USING (batch_id)
             WHERE r.conclusion IS NULL AND r.hold <> ''
               AND j.state IN ({listed((JobState.QUEUED, *LEASED_STATES))})""",
    ),
    # A run whose open jobs all have a cancel request does not keep others waiting (contract 4.1).
    Invariant(
        "W3",
        "At most one run of a concurrency group is not held and has an open job without a cancel request.",
        f"""SELECT 'runs ' || string_agg(r.id::text, ', ' ORDER BY r.id) FROM workflow_runs r
             WHERE r.conclusion IS NULL AND r.hold = '' AND r.concurrency_group <> ''
               AND EXISTS (SELECT FROM runtime_jobs j WHERE j.batch_id = r.batch_id
                              AND j.cancel_requested_at IS NULL AND j.state NOT IN ({listed(FINAL_STATES)}))
             GROUP BY r.repository_id, r.concurrency_group HAVING count(*) > 1""",
    ),
)
