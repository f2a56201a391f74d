-- Take the first job that this worker may run: highest priority, then oldest, then lowest id.
-- Claimers never wait for each other (SKIP LOCKED). NO KEY: an open insert of an event row, which holds a key-share
-- lock on its job, must not make the job invisible to claimers.
UPDATE runtime_jobs
   SET state = 'leased',
       fence = fence + 1
 WHERE id = (
    SELECT id
      FROM runtime_jobs
     WHERE state = 'queued'
       AND pool = %(pool)s
       AND job_type = ANY(%(job_types)s)
       AND least_isolation = ANY(%(isolations)s)
       AND requirements <@ %(offers)s::varchar[]
       AND NOT %(worker_id)s = ANY(excluded_workers)
     ORDER BY priority DESC, created_at, id
     LIMIT 1
       FOR NO KEY UPDATE SKIP LOCKED
 )
RETURNING *, clock_timestamp() AS at
