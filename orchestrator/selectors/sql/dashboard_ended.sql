-- Jobs of these organizations that have ended since a time, the newest of each type up to a bound.
SELECT job_type, state, coalesce(failure_reason, ''), count(*),
       coalesce(sum(extract(epoch FROM coalesce(started_at, finished_at) - created_at)), 0)::float8,
       coalesce(sum(extract(epoch FROM finished_at - started_at)), 0)::float8
  FROM unnest(%(organizations)s::text[]) AS o(slug)
 CROSS JOIN unnest(%(types)s::text[]) AS t(name)
 CROSS JOIN LATERAL (
    SELECT job_type, state, failure_reason, created_at, started_at, finished_at
      FROM runtime_jobs
     WHERE org_slug = o.slug AND job_type = t.name AND state IN ('failed', 'succeeded', 'canceled')
       AND finished_at > %(since)s
     ORDER BY finished_at DESC
     LIMIT %(max_ended)s) AS ended
 GROUP BY job_type, state, coalesce(failure_reason, '')
 ORDER BY job_type, state, 3
