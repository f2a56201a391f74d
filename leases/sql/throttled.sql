-- Pools with something to serve whose own throttle, or that of the job type, lets one start.
SELECT pg_notify('lanes', pool) FROM (
    SELECT DISTINCT q.pool
      FROM lane_limits m
      JOIN lane_queues q ON m.scope = 'job_type' OR q.pool = m.key
      JOIN lane_profiles p ON p.id = q.profile_id AND (m.scope = 'pool' OR p.job_type = m.key)
     WHERE m.scope IN ('pool', 'job_type') AND m.org_slug = '' AND m.per_hour IS NOT NULL
       AND q.head_id IS NOT NULL AND q.blocked_by IS NULL
       AND lanes_tokens(m.per_hour, m.burst, m.spent_until) > 0
       AND NOT EXISTS (SELECT FROM lane_limits paused WHERE paused.scope = m.scope AND paused.org_slug = ''
                          AND paused.key = m.key AND paused.kind = 'pause')) AS open
