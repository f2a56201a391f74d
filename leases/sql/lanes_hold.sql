-- Put jobs that were taken into the places that were locked for them: arrays p_limits and p_places run parallel.
-- p_counting: limits that count these jobs though they do not hold them; p_rates: token buckets.
-- p_elsewhere: they came through no lane of their source address, whose limit counts them too if there is one.
CREATE OR REPLACE FUNCTION lanes_hold(
    p_jobs bigint[], p_limits integer[], p_places bigint[], p_counting integer[], p_rates integer[],
    p_elsewhere boolean
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    addresses text[];
BEGIN
    IF p_limits <> '{}' THEN
        UPDATE lane_limit_slots s SET job_id = p_jobs[given.place], retired = m.one_shot
          FROM (SELECT h.l, h.n, row_number() OVER (PARTITION BY h.l ORDER BY h.n) AS place
                  FROM unnest(p_limits, p_places) AS h(l, n)) given
          JOIN lane_limits m ON m.id = given.l
         WHERE s.limit_id = given.l AND s.n = given.n AND given.place <= cardinality(p_jobs);
        UPDATE lane_limits SET max_active = 0 WHERE id = ANY (p_limits) AND one_shot;
    END IF;
    IF p_counting <> '{}' THEN
        INSERT INTO lane_limit_slots (limit_id, n, job_id, retired)
        SELECT l, -job, job, true FROM unnest(p_counting) AS l, unnest(p_jobs) AS job
         WHERE NOT EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = l AND s.job_id = job);
    END IF;
    IF p_rates <> '{}' THEN
        UPDATE lane_limits
           SET spent_until = greatest(spent_until, clock_timestamp()) + cardinality(p_jobs) * interval '1 hour' / per_hour
         WHERE id = ANY (p_rates);
    END IF;
    IF NOT p_elsewhere THEN
        RETURN;
    END IF;
    -- Who makes a limit of an address holds guard 10 alone, and then knows of every job that runs from there.
    SELECT array_agg(DISTINCT host(source_address)) INTO addresses
      FROM runtime_jobs WHERE id = ANY (p_jobs) AND source_address IS NOT NULL;
    IF addresses IS NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(10, key) FROM (SELECT hashtext(a) AS key FROM unnest(addresses) a ORDER BY 1) k;
    INSERT INTO lane_limit_slots (limit_id, n, job_id, retired)
    SELECT m.id, -j.id, j.id, true
      FROM runtime_jobs j JOIN lane_limits m ON m.scope = 'address' AND m.org_slug = '' AND m.key = host(j.source_address)
     WHERE j.id = ANY (p_jobs);
END $$;
