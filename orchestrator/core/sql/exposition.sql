-- Metrics of jobs, the same from all processes. Bounded: waiting jobs are counted up to a number for each lane and a
-- number in all, over the lanes that have a head; the rest are small tables.
SELECT (SELECT coalesce(jsonb_agg(depth), '[]') FROM (
            SELECT job_type, tenant, count(*) AS number FROM (
                SELECT p.job_type, CASE WHEN q.org_slug = ANY (%(tenants)s) THEN q.org_slug ELSE '' END AS tenant
                  FROM lanes l
                  JOIN lane_heads h ON h.lane_id = l.id
                  JOIN lane_queues q ON q.id = l.queue_id
                  JOIN lane_profiles p ON p.id = q.profile_id
                 CROSS JOIN LATERAL (
                    SELECT FROM runtime_jobs j
                     WHERE j.lane_id = l.id AND j.state = 'queued' AND j.id >= h.scan_from
                     LIMIT %(of_lane)s) waiting
                 WHERE h.head_id IS NOT NULL
                 LIMIT %(in_all)s) bounded
             GROUP BY job_type, tenant) depth),
       (SELECT coalesce(jsonb_object_agg(job_type, worst), '{}') FROM (
            SELECT job_type, max(CASE state WHEN 'open' THEN 2 WHEN 'half_open' THEN 1 ELSE 0 END) AS worst
              FROM lane_breakers GROUP BY job_type) breakers),
       (SELECT coalesce(jsonb_object_agg(kind, number), '{}') FROM (
            SELECT kind, count(*) AS number
              FROM (SELECT kind FROM incidents WHERE resolved_at IS NULL LIMIT %(max_incidents)s) bounded
             GROUP BY kind) incidents),
       (SELECT coalesce(jsonb_agg(jsonb_build_array(name, job_type, detail, org_slug, bound::text, value)), '[]') FROM (
            SELECT * FROM metric_counts ORDER BY name, job_type, detail, org_slug, bound LIMIT %(rows)s) c)
