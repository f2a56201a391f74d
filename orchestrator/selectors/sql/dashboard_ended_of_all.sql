-- Jobs of all organizations that have ended since a time, among the newest of each final status up to a bound.
SELECT job_type, state, coalesce(failure_reason, ''), count(*),
       coalesce(sum(extract(epoch FROM coalesce(started_at, finished_at) - created_at)), 0)::float8,
       coalesce(sum(extract(epoch FROM finished_at - started_at)), 0)::float8
  FROM unnest(ARRAY['uploaded', 'succeeded', 'failed', 'canceled']) AS final(status)
 CROSS JOIN LATERAL (
    SELECT job_type, state, failure_reason, created_at, started_at, finished_at
      FROM runtime_jobs j
     WHERE j.status = final.status AND j.finished_at IS NOT NULL
     ORDER BY j.created_at DESC
     LIMIT %(max_ended)s) AS ended
 WHERE finished_at > %(since)s
 GROUP BY job_type, state, coalesce(failure_reason, '')
 ORDER BY job_type, state, 3
