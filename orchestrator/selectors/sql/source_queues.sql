-- Queued jobs by organization, project and job type, counted up to a number for each lane and a number in all.
SELECT org_slug, project_slug, job_type, count(*)
  FROM (
    SELECT q.org_slug, l.project_slug, p.job_type
      FROM lanes l
      JOIN lane_heads h ON h.lane_id = l.id
      JOIN lane_queues q ON q.id = l.queue_id
      JOIN lane_profiles p ON p.id = q.profile_id
     CROSS JOIN LATERAL (
        SELECT FROM runtime_jobs j
         WHERE j.lane_id = l.id AND j.state = 'queued' AND j.id >= h.scan_from
         LIMIT %(per_lane)s) AS waiting
     WHERE h.head_id IS NOT NULL
       AND (%(organizations)s::text[] IS NULL OR q.org_slug = ANY (%(organizations)s::text[]))
     LIMIT %(in_all)s) AS bounded
 GROUP BY org_slug, project_slug, job_type
