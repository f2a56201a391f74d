-- Add the events since the last time to the counts, and what else can be seen of leases and limits. Events are read
-- below the oldest open transaction: above it a lower key may still be committed, and would be missed.
WITH place AS (
    SELECT xid, event_id, beats_until, clock_timestamp() AS now FROM metric_place WHERE id = 1 FOR UPDATE
), seen AS MATERIALIZED (
    SELECT e.*
      FROM place CROSS JOIN LATERAL (
        SELECT xid, id, job_ulid, event_type, job_type, payload_json ->> 'reason' AS reason, from_state,
               to_state
          FROM runtime_job_events
         WHERE (xid, id) > (place.xid, place.event_id) AND xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY xid, id
         LIMIT %(max_rows)s) e
), phases AS (
    SELECT j.job_type, phase.name, extract(epoch FROM phase.seconds)::float8 AS seconds
      FROM seen JOIN runtime_jobs j USING (job_ulid)
     CROSS JOIN LATERAL (VALUES ('queued', coalesce(j.started_at, j.finished_at) - j.created_at),
                                ('running', j.finished_at - j.started_at),
                                ('total', j.finished_at - j.created_at)) AS phase(name, seconds)
     WHERE seen.to_state = ANY (%(final)s) AND phase.seconds IS NOT NULL
), waits AS (
    SELECT j.job_type, extract(epoch FROM j.executing_at - j.created_at)::float8 AS seconds,
           coalesce((SELECT name FROM unnest(%(tiers)s::text[], %(priorities)s::integer[]) tier(name, priority)
                      WHERE tier.priority <= j.priority ORDER BY tier.priority DESC LIMIT 1), 'unclaimed') AS tier
      FROM seen JOIN runtime_jobs j USING (job_ulid)
     WHERE seen.to_state = 'executing' AND j.executing_at IS NOT NULL
), beats AS (
    SELECT j.job_type
      FROM place JOIN runtime_worker_leases l ON l.last_heartbeat_at > place.beats_until AND l.last_heartbeat_at <= place.now
      JOIN runtime_jobs j ON j.job_ulid = l.job_ulid
     WHERE l.completed_at IS NULL
), facts (name, job_type, detail, org_slug, bound, value) AS (
    SELECT 'job_failures', job_type, coalesce(reason, ''), '', 0, 1 FROM seen WHERE event_type = 'job.failed'
     UNION ALL
    SELECT 'job_retry', job_type, '', '', 0, 1 FROM seen WHERE event_type IN ('job.retried', 'job.replayed')
     UNION ALL
    SELECT 'job_cancellations', job_type, coalesce(reason, ''), '', 0, 1 FROM seen WHERE event_type = 'job.canceled'
     UNION ALL
    -- A job that waits is canceled at once, a running one by a request. Each counts once.
    SELECT 'actions_cancels', '', reasons.counted, '', 0, 1
      FROM seen JOIN unnest(%(cancel_reasons)s::text[], %(cancel_labels)s::text[]) reasons(reason, counted) USING (reason)
     WHERE job_type = 'actions'
       AND (event_type = 'job.cancel_requested' OR (event_type = 'job.canceled' AND from_state IN ('blocked', 'queued')))
     UNION ALL
    SELECT 'job_latency_bucket', job_type, name, '',
           coalesce((SELECT min(bound) FROM unnest(%(bounds)s::float8[]) bound WHERE seconds <= bound), 'Infinity'), 1
      FROM phases
     UNION ALL
    SELECT 'job_latency_sum', job_type, name, '', 0, seconds FROM phases
     UNION ALL
    SELECT 'job_queue_bucket', job_type, tier, '',
           coalesce((SELECT min(bound) FROM unnest(%(bounds)s::float8[]) bound WHERE seconds <= bound), 'Infinity'), 1
      FROM waits
     UNION ALL
    SELECT 'job_queue_sum', job_type, tier, '', 0, seconds FROM waits
     UNION ALL
    SELECT 'job_claims', job_type, '', '', 0, 1 FROM seen WHERE to_state = 'leased'
     UNION ALL
    SELECT 'job_updates', job_type, to_state, '', 0, 1 FROM seen WHERE to_state IS NOT NULL
     UNION ALL
    SELECT 'job_late_results', job_type, '', '', 0, 1 FROM seen WHERE from_state = 'lost' AND to_state = 'processing'
     UNION ALL
    SELECT 'billed_minutes', j.job_type, '', CASE WHEN j.org_slug = ANY (%(tenants)s) THEN j.org_slug ELSE '' END, 0,
           j.last_billed_minute
      FROM seen JOIN runtime_jobs j USING (job_ulid)
     WHERE seen.to_state = ANY (%(final)s) AND j.last_billed_minute IS NOT NULL
     UNION ALL
    SELECT 'pack_run_artifacts', '', '', '', 0,
           (SELECT count(*) FROM runtime_job_artifacts a WHERE a.job_ulid = seen.job_ulid)
         + (SELECT count(*) FROM runtime_stored_artifacts s WHERE s.job_ulid = seen.job_ulid AND s.completed_at IS NOT NULL)
      FROM seen WHERE job_type = 'pack-run' AND to_state = ANY (%(final)s)
     UNION ALL
    SELECT 'lease_extensions', job_type, '', '', 0, 1 FROM beats
     UNION ALL
    SELECT 'quota_exceeded', '', kind, CASE WHEN org_slug = ANY (%(tenants)s) THEN org_slug ELSE '' END, 0, 1
      FROM lane_limits WHERE waiting AND id <> ALL (%(known)s)
), added AS (
    INSERT INTO metric_counts AS c (name, job_type, detail, org_slug, bound, value)
    SELECT name, job_type, detail, org_slug, bound, sum(value) FROM facts GROUP BY 1, 2, 3, 4, 5
        ON CONFLICT (name, job_type, detail, org_slug, bound) DO UPDATE SET value = c.value + excluded.value
), moved AS (
    UPDATE metric_place m
       SET xid = coalesce(last.xid, m.xid), event_id = coalesce(last.id, m.event_id), beats_until = place.now
      FROM place LEFT JOIN (SELECT xid, id FROM seen ORDER BY xid DESC, id DESC LIMIT 1) last ON true
     WHERE m.id = 1
)
SELECT (SELECT count(*) FROM seen), (SELECT coalesce(array_agg(id), '{}') FROM lane_limits WHERE waiting)
