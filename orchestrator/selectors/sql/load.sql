-- The load of a pool and its workers. Every part has a bound, so the cost is the same with a million jobs as with a
-- hundred thousand: jobs are counted up to max_counted, starts among the newest max_leases leases.
WITH RECURSIVE ranks AS (
    (SELECT priority FROM runtime_jobs WHERE state = 'queued' AND pool = %(pool)s ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT priority FROM runtime_jobs
             WHERE state = 'queued' AND pool = %(pool)s AND priority < ranks.priority ORDER BY priority DESC LIMIT 1)
      FROM ranks WHERE ranks.priority IS NOT NULL
), servable AS (
    SELECT l.lane_id AS id, l.scan_from FROM queue_heads q JOIN lane_heads l ON l.queue_id = q.queue_id
     WHERE q.pool = %(pool)s AND q.head_id IS NOT NULL AND q.blocked_by IS NULL
       AND l.head_id IS NOT NULL AND l.blocked_by IS NULL
       AND NOT EXISTS (SELECT FROM lane_limits
                        WHERE scope = 'pool' AND org_slug = '' AND key = %(pool)s AND kind = 'pause'
                          AND (until IS NULL OR until > clock_timestamp()))
), open_leases AS (
    SELECT worker_id, expires_at > clock_timestamp() AS is_live
      FROM runtime_worker_leases WHERE completed_at IS NULL AND pool = %(pool)s
), pool_workers AS (
    SELECT w.state, w.unready_reason = '' AS is_ready, w.last_seen_at > clock_timestamp() - %(silent)s AS is_online,
           w.capacity - count(*) FILTER (WHERE open_leases.is_live) AS free
      FROM workers_worker w JOIN workers_pool p ON p.id = w.pool_id LEFT JOIN open_leases USING (worker_id)
     WHERE p.slug = %(pool)s AND w.state <> 'revoked'
     GROUP BY w.id
), recent AS (
    SELECT leased_at FROM runtime_worker_leases
     WHERE id > (SELECT max(id) FROM runtime_worker_leases) - %(max_leases)s
       AND pool = %(pool)s AND leased_at > clock_timestamp() - interval '60 s'
)
SELECT (SELECT count(*) FROM (
            SELECT FROM runtime_jobs WHERE state = 'queued' AND pool = %(pool)s LIMIT %(max_counted)s) bounded) AS queued,
       (SELECT count(*) FROM (
            SELECT FROM servable CROSS JOIN LATERAL (
                SELECT FROM runtime_jobs j
                 WHERE j.lane_id = servable.id AND j.state = 'queued' AND j.id >= servable.scan_from
                 LIMIT %(max_counted)s) waiting
             LIMIT %(max_counted)s) bounded) AS servable,
       (SELECT count(*) FROM open_leases) AS running,
       (SELECT coalesce(sum(greatest(free, 0)), 0)::integer FROM pool_workers
         WHERE state = 'active' AND is_online AND is_ready) AS idle_slots,
       (SELECT count(*) FROM pool_workers WHERE state = 'active' AND is_online) AS active,
       (SELECT count(*) FROM pool_workers WHERE state = 'active' AND is_online IS NOT TRUE) AS silent,
       (SELECT count(*) FROM pool_workers WHERE state = 'draining') AS draining,
       (SELECT count(*) FROM pool_workers WHERE state = 'maintenance') AS maintenance,
       (SELECT extract(epoch FROM clock_timestamp() - min((
            SELECT created_at FROM runtime_jobs
             WHERE state = 'queued' AND pool = %(pool)s AND priority = ranks.priority ORDER BY created_at LIMIT 1)))::float8
          FROM ranks WHERE ranks.priority IS NOT NULL) AS oldest_wait_seconds,
       (SELECT count(*) FROM recent) AS starts_per_minute,
       clock_timestamp() AS at
