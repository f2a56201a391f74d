-- Counts the queued jobs of each pool up to a bound, and finds the oldest. The cost does not grow with the queue:
-- pools, and the priorities in each, are found by hops through the index that claims use, never by a scan.
WITH RECURSIVE pools AS (
    (SELECT pool FROM runtime_jobs WHERE state = 'queued' ORDER BY pool LIMIT 1)
    UNION ALL
    SELECT (SELECT pool FROM runtime_jobs WHERE state = 'queued' AND pool > pools.pool ORDER BY pool LIMIT 1)
      FROM pools
     WHERE pools.pool IS NOT NULL
), ranks AS (
    SELECT pool,
           (SELECT priority FROM runtime_jobs
             WHERE state = 'queued' AND pool = pools.pool ORDER BY priority DESC LIMIT 1) AS priority
      FROM pools
     WHERE pool IS NOT NULL
    UNION ALL
    SELECT pool,
           (SELECT priority FROM runtime_jobs
             WHERE state = 'queued' AND pool = ranks.pool AND priority < ranks.priority ORDER BY priority DESC LIMIT 1)
      FROM ranks
     WHERE priority IS NOT NULL
)
SELECT pools.pool,
       (SELECT count(*) FROM (
            SELECT FROM runtime_jobs WHERE state = 'queued' AND pool = pools.pool LIMIT %(max_count)s + 1
        ) AS bounded) AS queued,
       (SELECT min((SELECT created_at FROM runtime_jobs
                     WHERE state = 'queued' AND pool = ranks.pool AND priority = ranks.priority
                     ORDER BY created_at LIMIT 1))
          FROM ranks
         WHERE ranks.pool = pools.pool AND ranks.priority IS NOT NULL) AS oldest
  FROM pools
 WHERE pools.pool IS NOT NULL
 LIMIT 500
