-- Limits: how many jobs one lets start now, and the slots and token buckets that claimed jobs take. A limit of N is N slot
-- rows, so at most N jobs hold one.

-- Returns how many jobs a token bucket lets start now: p_burst when it is full, which it is again at p_spent_until.
CREATE OR REPLACE FUNCTION bucket_tokens(p_per_hour integer, p_burst integer, p_spent_until timestamptz)
RETURNS integer
LANGUAGE sql VOLATILE AS $$
    SELECT floor(p_burst - greatest(0, extract(epoch FROM p_spent_until - clock_timestamp()) * p_per_hour / 3600)
                 + 0.000001)::integer
$$;

-- Returns whether a limit lets no job start now, and when that changes without an event. The caller holds lock 8.
CREATE OR REPLACE FUNCTION limit_is_full(p_limit_id bigint, OUT is_full boolean, OUT eligible_at timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
BEGIN
    SELECT * INTO m FROM lane_limits WHERE id = p_limit_id;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        is_full := false;
    ELSIF m.per_hour IS NOT NULL THEN
        is_full := bucket_tokens(m.per_hour, m.burst, m.spent_until) < 1;
        eligible_at := least(m.until, m.spent_until - (m.burst - 1) * interval '1 hour' / m.per_hour);
    ELSE
        is_full := NOT EXISTS (
            SELECT FROM lane_limit_slots WHERE limit_id = p_limit_id AND job_id IS NULL AND NOT retired);
        eligible_at := m.until;
    END IF;
END $$;

-- Returns how many of p_max_jobs jobs of this priority may start under one limit now (capacity), and locks their slots.
-- Never waits. retry: a slot was free, but another transaction has locked it.
-- counted: the limit counts the job in a slot if one is free, and does not stop it otherwise. rate: a token bucket.
CREATE OR REPLACE FUNCTION limit_capacity(
    p_limit_id bigint, p_max_jobs integer, p_priority integer,
    OUT capacity integer, OUT slots bigint[], OUT counted boolean, OUT rate boolean, OUT retry boolean
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
    bucket timestamptz;
    start bigint;
BEGIN
    slots := '{}';
    counted := false;
    rate := false;
    retry := false;
    SELECT * INTO m FROM lane_limits WHERE id = p_limit_id;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        capacity := p_max_jobs;
        RETURN;
    END IF;
    rate := m.per_hour IS NOT NULL;
    IF rate THEN
        -- Read all terms again under the lock: they may have changed, and the old ones would start too many jobs.
        SELECT per_hour, burst, spent_until INTO m.per_hour, m.burst, bucket
          FROM lane_limits WHERE id = p_limit_id FOR NO KEY UPDATE SKIP LOCKED;
        retry := NOT FOUND;
        capacity := CASE WHEN retry THEN 0 ELSE least(p_max_jobs, bucket_tokens(m.per_hour, m.burst, bucket)) END;
        RETURN;
    END IF;
    counted := p_priority >= m.binds_below IS TRUE;
    -- A random start: concurrent claims do not all try the same rows first.
    start := floor(random() * m.max_active);
    SELECT array_agg(n) INTO slots FROM (
        SELECT n FROM lane_limit_slots
         WHERE limit_id = p_limit_id AND job_id IS NULL AND NOT retired AND n >= start
         ORDER BY n LIMIT p_max_jobs FOR NO KEY UPDATE SKIP LOCKED) free;
    IF slots IS NULL THEN
        SELECT array_agg(n) INTO slots FROM (
            SELECT n FROM lane_limit_slots
             WHERE limit_id = p_limit_id AND job_id IS NULL AND NOT retired AND n < start
             ORDER BY n LIMIT p_max_jobs FOR NO KEY UPDATE SKIP LOCKED) free;
    END IF;
    slots := coalesce(slots, '{}');
    IF counted THEN
        capacity := p_max_jobs;
        RETURN;
    END IF;
    capacity := cardinality(slots);
    -- A job that this limit counts without stopping it may have started while the slot was locked: that job comes first.
    IF capacity > 0 AND m.binds_below IS NOT NULL THEN
        capacity := greatest(
            0, capacity - (SELECT count(*)::integer FROM lane_limit_slots WHERE limit_id = p_limit_id AND retired));
    END IF;
    retry := capacity = 0 AND EXISTS (
        SELECT FROM lane_limit_slots WHERE limit_id = p_limit_id AND job_id IS NULL AND NOT retired);
END $$;

-- Assigns claimed jobs to the slots that were locked for them: p_limits and p_slots run parallel.
-- p_counting: limits that count these jobs without stopping them. p_rates: token buckets.
CREATE OR REPLACE FUNCTION assign_slots(
    p_jobs bigint[], p_limits bigint[], p_slots bigint[], p_counting bigint[], p_rates bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_limits <> '{}' THEN
        UPDATE lane_limit_slots s SET job_id = p_jobs[given.position], retired = m.one_shot
          FROM (SELECT h.l, h.n, row_number() OVER (PARTITION BY h.l ORDER BY h.n) AS position
                  FROM unnest(p_limits, p_slots) AS h(l, n)) given
          JOIN lane_limits m ON m.id = given.l
         WHERE s.limit_id = given.l AND s.n = given.n AND given.position <= cardinality(p_jobs);
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
END $$;

-- Counts jobs that came through no lane of their source address (p_jobs) by the limits of these addresses.
-- A transaction that creates a limit of an address holds lock 10 alone: it sees every job that runs from there.
CREATE OR REPLACE FUNCTION count_addresses(p_jobs bigint[], p_addresses text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    address text;
BEGIN
    IF cardinality(p_addresses) > 1 THEN
        p_addresses := ARRAY(SELECT a FROM unnest(p_addresses) AS a ORDER BY hashtext(a));
    END IF;
    FOREACH address IN ARRAY p_addresses LOOP
        PERFORM pg_advisory_xact_lock_shared(10, hashtext(address));
    END LOOP;
    IF EXISTS (SELECT FROM lane_limits WHERE scope = 'address' AND org_slug = '' AND key = ANY (p_addresses)) THEN
        INSERT INTO lane_limit_slots (limit_id, n, job_id, retired)
        SELECT m.id, -j.id, j.id, true
          FROM runtime_jobs j
          JOIN lane_limits m ON m.scope = 'address' AND m.org_slug = '' AND m.key = host(j.source_address)
         WHERE j.id = ANY (p_jobs);
    END IF;
END $$;

-- Moves jobs from retired slots of a limit into its free slots. The caller has locked the limit's row. A slot that a
-- claim has locked looks free until that claim commits: it is skipped.
CREATE OR REPLACE FUNCTION reassign_overflow_slots(p_limit_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT free.n, old.n AS old_n, old.job_id
          FROM (SELECT n, row_number() OVER (ORDER BY n) AS position
                  FROM (SELECT n FROM lane_limit_slots
                         WHERE limit_id = p_limit_id AND job_id IS NULL AND NOT retired
                         ORDER BY n FOR NO KEY UPDATE SKIP LOCKED) unlocked) free
          JOIN (SELECT n, job_id, row_number() OVER (ORDER BY n) AS position FROM lane_limit_slots
                 WHERE limit_id = p_limit_id AND retired) old USING (position)
    LOOP
        DELETE FROM lane_limit_slots WHERE limit_id = p_limit_id AND n = item.old_n;
        UPDATE lane_limit_slots SET job_id = item.job_id WHERE limit_id = p_limit_id AND n = item.n;
    END LOOP;
END $$;
