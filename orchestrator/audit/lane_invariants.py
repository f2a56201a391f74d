"""Invariants of lanes and limits: every waiting job can be found by a claim, and no limit is exceeded."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.states import LEASED_STATES, WAITING_STATES

LANE_INVARIANTS = (
    Invariant(
        "Q1",
        "The room of a submit quota plus the waiting jobs does not exceed the maximum of the plan.",
        """SELECT q.org_slug FROM submit_quotas q
            WHERE q.max_queued IS NOT NULL AND q.max_queued < q.room +
              (SELECT count(*) FROM runtime_jobs j
                WHERE j.org_slug = q.org_slug AND j.state IN ('queued', 'blocked'))""",
    ),
    Invariant(
        "L1",
        "A queued job is at or after the scan position of its lane, and the lane has a head.",
        """SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN lane_heads l ON l.lane_id = j.lane_id
            WHERE j.state = 'queued' AND (l.lane_id IS NULL OR l.head_id IS NULL OR l.scan_from > j.id)""",
    ),
    Invariant(
        "L2",
        "A queue with a lane to serve has a head.",
        """SELECT q.queue_id::text FROM queue_heads q WHERE q.head_id IS NULL AND EXISTS
             (SELECT FROM lane_heads l
               WHERE l.queue_id = q.queue_id AND l.head_id IS NOT NULL AND l.blocked_by IS NULL)""",
    ),
    Invariant(
        "L12",
        "A lane and a queue have one head each, and claims read its generation if it may be served.",
        """SELECT each.name FROM (
               SELECT 'lane ' || l.id AS name, h.generation, h.head_id IS NOT NULL AND h.blocked_by IS NULL AS can_run
                 FROM lanes l FULL JOIN lane_heads h ON h.lane_id = l.id AND h.queue_id = l.queue_id
                UNION ALL
               SELECT 'queue ' || q.id, h.generation, h.head_id IS NOT NULL AND h.blocked_by IS NULL
                 FROM lane_queues q FULL JOIN queue_heads h
                   ON h.queue_id = q.id AND h.pool = q.pool AND h.profile_id = q.profile_id) each
            GROUP BY each.name
           HAVING each.name IS NULL OR count(*) > 1 OR bool_or(each.generation IS NULL)
               OR bool_or(each.can_run AND each.generation <> ALL (live_generations()))""",
    ),
    Invariant(
        "L3",
        "A blocked queue or lane has a full limit that is marked as waited for, or a time at which it is unblocked.",
        """SELECT b.name FROM (SELECT 'queue ' || queue_id AS name, blocked_by, eligible_at FROM queue_heads
                                UNION ALL SELECT 'lane ' || lane_id, blocked_by, eligible_at FROM lane_heads) b
             LEFT JOIN lane_limits m ON m.id = b.blocked_by
            WHERE b.blocked_by IS NOT NULL AND b.eligible_at IS NULL AND (m.id IS NULL OR NOT m.waiting
               OR m.per_hour IS NOT NULL OR EXISTS
              (SELECT FROM lane_limit_slots s WHERE s.limit_id = m.id AND s.job_id IS NULL AND NOT s.retired))""",
    ),
    Invariant(
        "L4",
        "An occupied slot belongs to a leased job.",
        f"""SELECT s.limit_id || '/' || s.n FROM lane_limit_slots s LEFT JOIN runtime_jobs j ON j.id = s.job_id
             WHERE s.job_id IS NOT NULL AND (j.id IS NULL OR j.state NOT IN ({listed(LEASED_STATES)}))""",
    ),
    Invariant(
        "L5",
        "A leased job has one slot of each of its limits.",
        f"""SELECT j.job_ulid FROM runtime_jobs j
              JOIN lanes l ON l.id = j.lane_id JOIN lane_queues q ON q.id = l.queue_id
             CROSS JOIN LATERAL unnest(q.limits || l.limits) AS limited(by)
              JOIN lane_limits m ON m.id = limited.by
                                AND m.max_active IS NOT NULL AND m.kind NOT IN ('pause', 'breaker')
             WHERE j.state IN ({listed(LEASED_STATES)}) AND 1 <>
               (SELECT count(*) FROM lane_limit_slots s WHERE s.limit_id = limited.by AND s.job_id = j.id)""",
    ),
    Invariant(
        "L6",
        "A limit of N has N slots that are not retired.",
        """SELECT m.id::text FROM lane_limits m WHERE m.max_active <>
             (SELECT count(*) FROM lane_limit_slots s WHERE s.limit_id = m.id AND NOT s.retired)""",
    ),
    Invariant(
        "L7",
        "No more jobs have started under a rate than it allows, since it was set or within the last hour.",
        """SELECT m.org_slug || '/' || m.key FROM lane_limits m
            CROSS JOIN LATERAL (SELECT greatest(m.set_at, clock_timestamp() - interval '1 hour') AS since) w
            WHERE m.kind = 'rate'
              AND m.burst + 1 + m.per_hour * extract(epoch FROM clock_timestamp() - w.since) / 3600 <
              (SELECT count(*) FROM runtime_worker_leases l JOIN runtime_jobs j ON j.job_ulid = l.job_ulid
                WHERE l.leased_at > w.since AND j.org_slug = m.org_slug AND j.priority < 400
                  AND m.key IN ('*', j.job_type))""",
    ),
    Invariant(
        "L8",
        "A breaker that is not closed has a limit, and one that is closed has none.",
        """SELECT b.org_slug || '/' || b.job_type FROM lane_breakers b WHERE (b.state <> 'closed') <> EXISTS
             (SELECT FROM lane_limits m WHERE m.kind = 'breaker' AND m.org_slug = b.org_slug AND m.key = b.job_type)""",
    ),
    Invariant(
        "L9",
        "A limit of queues or lanes is in the list of each of them.",
        """SELECT q.id::text FROM lane_queues q JOIN lane_profiles p ON p.id = q.profile_id
             JOIN lane_limits m ON m.scope = 'organization' AND m.org_slug = q.org_slug AND m.key IN ('*', p.job_type)
            WHERE NOT m.id = ANY (q.limits)
              AND CASE WHEN q.priority >= 400 THEN m.kind NOT IN ('organization', 'plan', 'rate')
                       ELSE m.kind <> 'emergency' END""",
    ),
    Invariant(
        "L11",
        "A waiting emergency job has an emergency limit.",
        f"""SELECT j.job_ulid FROM runtime_jobs j
             WHERE j.state IN ({listed(WAITING_STATES)}) AND j.priority >= {EMERGENCY} AND NOT EXISTS
               (SELECT FROM lane_limits m WHERE m.kind = 'emergency' AND m.scope = 'organization'
                   AND m.org_slug = j.org_slug AND m.key IN ('*', j.job_type))""",
    ),
    Invariant(
        "L10",
        "In a fair pool, each organization with a queue has a share.",
        """SELECT q.id::text FROM lane_queues q JOIN workers_pool p ON p.slug = q.pool AND p.policy = 'fair'
            WHERE NOT EXISTS (SELECT FROM lane_shares s WHERE s.pool = q.pool AND s.org_slug = q.org_slug)""",
    ),
)
