-- The limits that let no job of these lanes start now.
SELECT l.id, m.kind, m.org_slug, m.key, m.max_active
  FROM lanes l
  JOIN lane_queues q ON q.id = l.queue_id
 CROSS JOIN LATERAL unnest(q.limits || l.limits) AS held(by)
  JOIN lane_limits m ON m.id = held.by
 WHERE l.id = ANY (%(lanes)s)
   AND NOT EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = m.id AND s.job_id IS NULL AND NOT s.retired)
 ORDER BY m.id
