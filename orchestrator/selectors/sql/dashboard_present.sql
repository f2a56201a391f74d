-- Jobs that have not ended by type and state: their number, how many of the queued ones a limit stops now, and when the
-- oldest was created. Running jobs are as many as workers have slots. Queued and blocked ones are counted up to bounds, over
-- a bounded number of lanes. Whether a limit is full is asked once for each limit, not for each lane. The conditions on the
-- state are those of partial indexes, in their words.
WITH lane AS MATERIALIZED (
    SELECT l.id, h.scan_from, q.limits || l.limits AS limits, q.pool, q.priority, p.job_type
      FROM lanes l
      JOIN lane_heads h ON h.lane_id = l.id
      JOIN lane_queues q ON q.id = l.queue_id
      JOIN lane_profiles p ON p.id = q.profile_id
     WHERE h.head_id IS NOT NULL
       AND (%(organizations)s::text[] IS NULL OR q.org_slug = ANY (%(organizations)s::text[]))
     LIMIT %(max_lanes)s
), full_limit AS MATERIALIZED (
    SELECT m.id, m.scope, m.key, m.binds_below
      FROM lane_limits m
     CROSS JOIN LATERAL limit_is_full(m.id) AS now
     WHERE now.is_full
       AND (m.id IN (SELECT unnest(limits) FROM lane) OR (m.scope IN ('pool', 'job_type') AND m.org_slug = ''))
), judged AS MATERIALIZED (
    SELECT lane.id, lane.scan_from, lane.job_type, EXISTS (
            SELECT FROM full_limit f
             WHERE (f.id = ANY (lane.limits) OR (f.scope = 'pool' AND f.key = lane.pool)
                    OR (f.scope = 'job_type' AND f.key = lane.job_type))
               AND (f.binds_below IS NULL OR lane.priority < f.binds_below)) AS is_throttled
      FROM lane
), queued AS (
    -- These columns are in an index, so the rows of the jobs are not read. A bound keeps the jobs with the lowest ids.
    SELECT lane_id, count(*) AS number, min(id) AS oldest_id
      FROM (SELECT waiting.lane_id, waiting.id
              FROM judged
             CROSS JOIN LATERAL (
                SELECT j.lane_id, j.id FROM runtime_jobs j
                 WHERE j.lane_id = judged.id AND j.state = 'queued' AND j.id >= judged.scan_from
                 LIMIT %(max_queued)s) AS waiting
             LIMIT %(max_queued)s) AS counted
     GROUP BY lane_id
)
SELECT job_type, state, sum(number)::bigint, coalesce(sum(number) FILTER (WHERE is_throttled), 0)::bigint,
       min(created_at)
  FROM (
    SELECT judged.job_type, 'queued' AS state, queued.number, judged.is_throttled, oldest.created_at
      FROM queued
      JOIN judged ON judged.id = queued.lane_id
      JOIN runtime_jobs oldest ON oldest.id = queued.oldest_id
     UNION ALL
    SELECT job_type, state, 1, false, created_at FROM runtime_jobs
     WHERE state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading')
       AND (%(organizations)s::text[] IS NULL OR org_slug = ANY (%(organizations)s::text[]))
     UNION ALL
    SELECT job_type, state, 1, false, created_at FROM runtime_jobs
     WHERE state IN ('lost', 'processing')
       AND (%(organizations)s::text[] IS NULL OR org_slug = ANY (%(organizations)s::text[]))
     UNION ALL
    (SELECT job_type, state, 1, false, created_at FROM runtime_jobs
      WHERE state = 'blocked'
        AND (%(organizations)s::text[] IS NULL OR org_slug = ANY (%(organizations)s::text[]))
      LIMIT %(max_blocked)s)) AS present
 GROUP BY job_type, state
 ORDER BY job_type, state
