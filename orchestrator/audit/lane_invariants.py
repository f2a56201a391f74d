"""What must always hold of lanes and limits: nothing that waits is out of sight, nothing runs above a limit."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.states import HELD

LANE_INVARIANTS = (
    Invariant(
        "L1",
        "A job that waits is within the reach of its lane.",
        """SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN lanes l ON l.id = j.lane_id
            WHERE j.state = 'queued' AND (l.id IS NULL OR l.head_id IS NULL OR l.scan_from > j.id)""",
    ),
    Invariant(
        "L2",
        "A queue with something to serve is in the choice.",
        """SELECT q.id::text FROM lane_queues q WHERE q.head_id IS NULL AND EXISTS
             (SELECT FROM lanes l WHERE l.queue_id = q.id AND l.head_id IS NOT NULL AND l.blocked_by IS NULL)""",
    ),
    Invariant(
        "L3",
        "Who is blocked is blocked by a limit that is full and knows that it is waited for.",
        """SELECT b.name FROM (SELECT 'queue ' || id AS name, blocked_by FROM lane_queues
                                UNION ALL SELECT 'lane ' || id, blocked_by FROM lanes) b
             LEFT JOIN lane_limits m ON m.id = b.blocked_by
            WHERE b.blocked_by IS NOT NULL AND (m.id IS NULL OR NOT m.waiting OR EXISTS
              (SELECT FROM lane_limit_slots s WHERE s.limit_id = m.id AND s.job_id IS NULL AND NOT s.retired))""",
    ),
    Invariant(
        "L4",
        "A slot is held by a job that is held.",
        f"""SELECT s.limit_id || '/' || s.n FROM lane_limit_slots s LEFT JOIN runtime_jobs j ON j.id = s.job_id
             WHERE s.job_id IS NOT NULL AND (j.id IS NULL OR j.state NOT IN ({listed(HELD)}))""",
    ),
    Invariant(
        "L5",
        "A job that is held holds one slot of each of its limits.",
        f"""SELECT j.job_ulid FROM runtime_jobs j
              JOIN lanes l ON l.id = j.lane_id JOIN lane_queues q ON q.id = l.queue_id
             CROSS JOIN LATERAL unnest(q.limits || l.limits) AS limited(by)
             WHERE j.state IN ({listed(HELD)}) AND 1 <>
               (SELECT count(*) FROM lane_limit_slots s WHERE s.limit_id = limited.by AND s.job_id = j.id)""",
    ),
    Invariant(
        "L6",
        "A limit of N has N slots that count.",
        """SELECT m.id::text FROM lane_limits m WHERE m.max_active <>
             (SELECT count(*) FROM lane_limit_slots s WHERE s.limit_id = m.id AND NOT s.retired)""",
    ),
)
