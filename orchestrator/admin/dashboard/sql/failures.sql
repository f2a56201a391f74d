-- Failed jobs since a time by reason, the most frequent first, among the last that ended. One index has all of it.
SELECT failure_reason, count(*)
  FROM (SELECT failure_reason
          FROM runtime_jobs
         WHERE state = 'failed' AND finished_at >= %(since)s
         ORDER BY finished_at DESC
         LIMIT %(max_count)s) AS newest
 GROUP BY failure_reason
 ORDER BY count(*) DESC, failure_reason
