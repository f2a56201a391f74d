-- The places of these jobs among the first of their pools, in the order of the claim.
SELECT ahead.id, ahead.place
  FROM unnest(%(pools)s::text[]) AS wanted(pool)
 CROSS JOIN LATERAL (
    SELECT id, row_number() OVER () AS place
      FROM (SELECT id FROM runtime_jobs WHERE state = 'queued' AND pool = wanted.pool
             ORDER BY priority DESC, created_at, id LIMIT %(counted)s) AS first) AS ahead
 WHERE ahead.id = ANY (%(jobs)s)
