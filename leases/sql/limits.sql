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

-- Returns how many of p_max_jobs jobs of this priority may start now under all of these limits (capacity), and locks
-- their slots: slot_limits and slot_numbers run parallel. Never waits.
-- counting: limits that count the job in a slot if one is free, and do not stop it otherwise. rates: token buckets.
-- full_limit: the first limit that lets no job start. retry: it has a free slot, which another transaction has locked.
-- One call for all limits of a lane costs a claim as much as one call for a limit: 1.36 and 1.35 ms of a processor. A
-- function for the lane that calls one for each limit costs 0.03 to 0.04 ms more.
CREATE OR REPLACE FUNCTION lane_capacity(
    p_limits bigint[], p_max_jobs integer, p_priority integer,
    OUT capacity integer, OUT slot_limits bigint[], OUT slot_numbers bigint[], OUT counting bigint[], OUT rates bigint[],
    OUT full_limit bigint, OUT retry boolean
) LANGUAGE plpgsql AS $$
DECLARE
    m lane_limits;
    the_limit bigint;
    bucket timestamptz;
    start bigint;
    slots bigint[];
BEGIN
    capacity := p_max_jobs;
    slot_limits := '{}';
    slot_numbers := '{}';
    counting := '{}';
    rates := '{}';
    retry := false;
    FOREACH the_limit IN ARRAY p_limits LOOP
        SELECT * INTO m FROM lane_limits WHERE id = the_limit;
        CONTINUE WHEN NOT FOUND OR m.until <= clock_timestamp();
        IF m.per_hour IS NOT NULL THEN
            -- Read all terms again under the lock: they may have changed, and the old ones would start too many jobs.
            SELECT l.per_hour, l.burst, l.spent_until INTO m.per_hour, m.burst, bucket
              FROM lane_limits l WHERE l.id = the_limit FOR NO KEY UPDATE SKIP LOCKED;
            retry := NOT FOUND;
            capacity := CASE WHEN retry THEN 0 ELSE least(capacity, bucket_tokens(m.per_hour, m.burst, bucket)) END;
            rates := rates || the_limit;
        ELSE
            -- A random start: concurrent claims do not all try the same rows first.
            start := floor(random() * m.max_active);
            SELECT array_agg(free.n) INTO slots FROM (
                SELECT s.n FROM lane_limit_slots s
                 WHERE s.limit_id = the_limit AND s.job_id IS NULL AND NOT s.retired AND s.n >= start
                 ORDER BY s.n LIMIT capacity FOR NO KEY UPDATE SKIP LOCKED) free;
            IF slots IS NULL THEN
                SELECT array_agg(free.n) INTO slots FROM (
                    SELECT s.n FROM lane_limit_slots s
                     WHERE s.limit_id = the_limit AND s.job_id IS NULL AND NOT s.retired AND s.n < start
                     ORDER BY s.n LIMIT capacity FOR NO KEY UPDATE SKIP LOCKED) free;
            END IF;
            slots := coalesce(slots, '{}');
            slot_limits := slot_limits || array_fill(the_limit, ARRAY[cardinality(slots)]);
            slot_numbers := slot_numbers || slots;
            IF p_priority >= m.binds_below THEN
                counting := counting || the_limit;
                CONTINUE;
            END IF;
            capacity := cardinality(slots);
            -- A job that this limit counts without stopping it may have started while the slot was locked: it comes first.
            IF capacity > 0 AND m.binds_below IS NOT NULL THEN
                capacity := greatest(0, capacity - (
                    SELECT count(*)::integer FROM lane_limit_slots s WHERE s.limit_id = the_limit AND s.retired));
            END IF;
            retry := capacity = 0 AND EXISTS (
                SELECT FROM lane_limit_slots s WHERE s.limit_id = the_limit AND s.job_id IS NULL AND NOT s.retired);
        END IF;
        IF capacity < 1 THEN
            capacity := 0;
            full_limit := the_limit;
            RETURN;
        END IF;
    END LOOP;
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
