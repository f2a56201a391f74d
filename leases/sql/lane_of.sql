-- The lane of jobs like this one, if there is one.
SELECT l.id
  FROM lane_profiles p
  JOIN lane_queues q ON q.profile_id = p.id
  JOIN lanes l ON l.queue_id = q.id
 WHERE q.pool = %s AND q.priority = %s AND q.org_slug = %s
   AND l.project_slug = %s AND l.source_address = %s AND l.concurrency_key = %s
   AND p.job_type = %s AND p.least_isolation = %s AND p.requirements = %s::varchar[]
