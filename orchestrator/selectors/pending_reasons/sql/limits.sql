-- The limits that block these lanes now: those of the lane, its queue, the pool and the job type.
SELECT l.id, m.kind, m.scope, m.org_slug, m.key, m.max_active, m.per_hour, m.until, m.note, m.set_by,
       CASE b.state WHEN 'open' THEN b.cool_until ELSE now.eligible_at END
  FROM lanes l
  JOIN lane_queues q ON q.id = l.queue_id
  JOIN lane_profiles p ON p.id = q.profile_id
 CROSS JOIN LATERAL (
    SELECT unnest(q.limits || l.limits)
     UNION
    SELECT id FROM lane_limits WHERE scope = 'pool' AND org_slug = '' AND key = q.pool
     UNION
    SELECT id FROM lane_limits WHERE scope = 'job_type' AND org_slug = '' AND key = p.job_type) AS held(by)
  JOIN lane_limits m ON m.id = held.by
  LEFT JOIN lane_breakers b ON b.limit_id = m.id
 CROSS JOIN LATERAL limit_is_full(m.id) AS now
 WHERE l.id = ANY (%(lanes)s) AND now.is_full AND (m.binds_below IS NULL OR q.priority < m.binds_below)
 ORDER BY m.id
