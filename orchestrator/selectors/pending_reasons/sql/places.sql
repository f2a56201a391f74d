-- The positions of these jobs in their pools, in the order in which they are claimed.
SELECT ahead.id, ahead.place
  FROM unnest(%(pools)s::text[]) AS wanted(pool)
 CROSS JOIN LATERAL (
    SELECT id, row_number() OVER () AS place
      FROM (SELECT id FROM runtime_jobs WHERE state = 'queued' AND pool = wanted.pool
             ORDER BY priority DESC, created_at, id LIMIT %(counted)s) AS first) AS ahead
 WHERE ahead.id = ANY (%(jobs)s)
