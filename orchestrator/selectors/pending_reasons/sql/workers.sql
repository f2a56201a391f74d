-- For each set of requirements of waiting jobs: the number of online workers of the pool, the number of these that
-- match, whether a matching one has a free slot, and what the best worker lacks. Jobs with the same requirements share a
-- row. Of a large pool only the first 2000 workers are read.
WITH wanted AS (
    SELECT row_number() OVER () AS n, array_agg(id) AS jobs,
           pool, job_type, requirements, least_isolation, excluded_workers
      FROM runtime_jobs
     WHERE id = ANY (%(jobs)s)
     GROUP BY pool, job_type, requirements, least_isolation, excluded_workers
), held AS (
    SELECT worker_id, count(*) AS leases
      FROM runtime_worker_leases
     WHERE completed_at IS NULL AND expires_at > clock_timestamp()
     GROUP BY worker_id
), alive AS (
    -- The offer of the last claim; before the first claim the registered capabilities.
    SELECT w.worker_id, p.slug AS pool, coalesce(w.offered, w.labels || w.capabilities) AS offers,
           w.offered_types AS types,
           coalesce(w.offered_isolation, CASE WHEN 'microvm' = ANY (w.capabilities) THEN 'microvm'
                WHEN 'namespaces' = ANY (w.capabilities) THEN 'namespaces'
                WHEN 'restricted' = ANY (w.capabilities) THEN 'restricted' ELSE 'none' END) AS isolation,
           w.unready_reason <> '' AS unready,
           w.capacity > coalesce((SELECT held.leases FROM held WHERE held.worker_id = w.worker_id), 0) AS has_room
      FROM workers_worker w
      JOIN workers_pool p ON p.id = w.pool_id
     WHERE p.slug IN (SELECT pool FROM wanted) AND w.state = 'active'
       AND w.last_seen_at > clock_timestamp() - %(silent)s
     ORDER BY w.id
     LIMIT 2000
), compared AS (
    SELECT wanted.n, alive.has_room, alive.unready OR alive.worker_id = ANY (wanted.excluded_workers) AS refused,
           ARRAY(SELECT unnest(wanted.requirements) EXCEPT SELECT unnest(alive.offers) ORDER BY 1) AS lacks,
           array_position(%(levels)s, wanted.least_isolation::text) > array_position(%(levels)s, alive.isolation)
               AS too_open,
           alive.types IS NOT NULL AND wanted.job_type <> ALL (alive.types) AS other_type
      FROM wanted JOIN alive USING (pool)
), nearest AS (
    SELECT DISTINCT ON (n) n, lacks, too_open, other_type
      FROM compared ORDER BY n, cardinality(lacks) + too_open::integer + other_type::integer, refused
)
SELECT wanted.jobs, wanted.pool, wanted.requirements, wanted.least_isolation, wanted.job_type,
       (SELECT count(*) FROM compared c WHERE c.n = wanted.n) AS alive,
       (SELECT count(*) FROM compared c
         WHERE c.n = wanted.n AND c.lacks = '{}' AND NOT (c.refused OR c.too_open OR c.other_type)) AS fitting,
       EXISTS (SELECT FROM compared c
                WHERE c.n = wanted.n AND c.lacks = '{}' AND NOT (c.refused OR c.too_open OR c.other_type)
                  AND c.has_room) AS has_room,
       coalesce(nearest.lacks, wanted.requirements) AS lacks, coalesce(nearest.too_open, false) AS too_open,
       coalesce(nearest.other_type, false) AS other_type
  FROM wanted LEFT JOIN nearest USING (n)
