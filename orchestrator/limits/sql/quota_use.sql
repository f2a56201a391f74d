-- Running jobs and starts since a time, by organization and job type. A job that started since then has not ended, or has
-- ended since then. The conditions on the state are those of three partial indexes, in their words.
SELECT org_slug, job_type, sum(running) AS running, sum(started) AS started
  FROM (
    SELECT org_slug, job_type, 1 AS running, (started_at > %(since)s)::integer AS started
      FROM runtime_jobs
     WHERE state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading')
       AND org_slug = ANY (%(organizations)s)
     UNION ALL
    SELECT org_slug, job_type, 0, 1
      FROM runtime_jobs
     WHERE state IN ('lost', 'processing') AND org_slug = ANY (%(organizations)s) AND started_at > %(since)s
     UNION ALL
    SELECT o.slug, t.name, 0, (
        SELECT count(*) FROM (
            SELECT FROM runtime_jobs
             WHERE org_slug = o.slug AND job_type = t.name AND state IN ('failed', 'succeeded', 'canceled')
               AND finished_at > %(since)s AND started_at > %(since)s
             LIMIT %(max_starts)s) AS bounded)
      FROM unnest(%(organizations)s::text[]) AS o(slug) CROSS JOIN unnest(%(types)s::text[]) AS t(name)) AS used
 GROUP BY org_slug, job_type
