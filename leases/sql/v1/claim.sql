-- A claim: choose queues and lanes, take jobs and slots (claim_jobs_v1), and record what turned out to be empty or full
-- (finalize_claim_v1). The claims of all workers run these functions at the same time.
--
-- Advisory locks and the order of all locks: leases/advisory_locks.py. Lock keys have 32 bits, ids 64: `id & 2147483647`.
-- enable_seqscan is off because statistics of small, busy tables are stale: a plan for ten rows meets ten thousand.

-- Returns how many jobs a token bucket lets start now: p_burst when it is full, which it is again at p_spent_until.
CREATE OR REPLACE FUNCTION bucket_tokens_v1(p_per_hour integer, p_burst integer, p_spent_until timestamptz)
RETURNS integer
LANGUAGE sql VOLATILE AS $$
    SELECT floor(p_burst - greatest(0, extract(epoch FROM p_spent_until - clock_timestamp()) * p_per_hour / 3600)
                 + 0.000001)::integer
$$;

-- Returns whether a limit lets no job start now, and when that changes without an event. The caller holds lock 8.
CREATE OR REPLACE FUNCTION limit_is_full_v1(p_limit_id bigint, OUT is_full boolean, OUT eligible_at timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
BEGIN
    SELECT * INTO m FROM lane_limits WHERE id = p_limit_id;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        is_full := false;
    ELSIF m.per_hour IS NOT NULL THEN
        is_full := bucket_tokens_v1(m.per_hour, m.burst, m.spent_until) < 1;
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
CREATE OR REPLACE FUNCTION limit_capacity_v1(
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
        capacity := CASE WHEN retry THEN 0 ELSE least(p_max_jobs, bucket_tokens_v1(m.per_hour, m.burst, bucket)) END;
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
-- p_without_address: the jobs came through no lane of their source address; a limit of that address counts them, too.
CREATE OR REPLACE FUNCTION assign_slots_v1(
    p_jobs bigint[], p_limits bigint[], p_slots bigint[], p_counting bigint[], p_rates bigint[],
    p_without_address boolean
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    addresses text[];
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
    IF NOT p_without_address THEN
        RETURN;
    END IF;
    -- A transaction that creates a limit of an address holds lock 10 alone: it sees every job that runs from there.
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

-- Claims up to p_max_jobs jobs for one worker: the best queue, in it the oldest lane, in it the oldest jobs.
--
-- Never waits. Queues and lanes are chosen without a lock (skipping a locked one would serve a lower priority); slots
-- and jobs are taken with SKIP LOCKED. A limit of N is N slot rows, so at most N jobs hold one.
-- Records no absence. It reports the lanes and limits that it read; finalize_claim_v1, the last statement of the
-- transaction, reads them again and records what is empty or full.
--
-- Rows: ('job', runtime_jobs.id, lane), ('lane', lane, queue), ('lane_full', lane, limit), ('queue_full', queue, limit),
-- ('again', 0, 0): inconclusive, because of locked rows or after p_attempts; ('due', 0, 0): a blocked queue or lane is due.
CREATE OR REPLACE FUNCTION claim_jobs_v1(
    p_pool text, p_profiles bigint[], p_worker text, p_max_jobs integer, p_attempts integer DEFAULT 16
) RETURNS TABLE (kind text, id bigint, parent_id bigint)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    the_queue record;
    the_lane record;
    available record;
    seen_queues bigint[] := '{}';
    seen_lanes bigint[] := '{}';
    closed_profiles bigint[] := '{}';
    pool_limits bigint[];
    type_limits bigint[] := '{}';
    types_limited boolean;
    the_limit bigint;
    slot_limits bigint[];
    slot_numbers bigint[];
    counting bigint[];
    rates bigint[];
    capacity integer;
    jobs bigint[];
    remaining integer := p_max_jobs;
    missed boolean := false;
    exhausted boolean := true;
BEGIN
    SELECT coalesce(array_agg(m.id::bigint), '{}') INTO pool_limits
      FROM lane_limits m WHERE m.scope = 'pool' AND m.org_slug = '' AND m.key = p_pool;
    types_limited := EXISTS (SELECT FROM lane_limits m WHERE m.scope = 'job_type');
    <<queues>>
    FOR queue_attempt IN 1..p_attempts LOOP
        SELECT best.* INTO the_queue
          FROM unnest(p_profiles) AS matching(profile)
         CROSS JOIN LATERAL (
            SELECT q.id, q.profile_id, q.priority, q.limits::bigint[] AS limits, q.tier, q.rank, q.head_id
              FROM lane_queues q
             WHERE q.pool = p_pool AND q.profile_id = matching.profile
               AND q.head_id IS NOT NULL AND q.blocked_by IS NULL AND q.id <> ALL (seen_queues)
             ORDER BY q.tier DESC, q.rank, q.head_id
             LIMIT 1) best
         WHERE matching.profile <> ALL (closed_profiles)
         ORDER BY best.tier DESC, best.rank, best.head_id
         LIMIT 1;
        exhausted := FOUND;
        EXIT WHEN NOT exhausted;
        seen_queues := seen_queues || the_queue.id::bigint;
        -- A transaction that attaches a limit to this queue holds lock 5 alone: it sees every job that runs without it.
        IF NOT pg_try_advisory_xact_lock_shared(5, (the_queue.id & 2147483647)::integer) THEN
            missed := true;
            CONTINUE;
        END IF;
        SELECT q.limits::bigint[] INTO the_queue.limits FROM lane_queues q WHERE q.id = the_queue.id;
        IF types_limited THEN
            SELECT coalesce(array_agg(m.id::bigint), '{}') INTO type_limits
              FROM lane_profiles p JOIN lane_limits m ON m.scope = 'job_type' AND m.org_slug = '' AND m.key = p.job_type
             WHERE p.id = the_queue.profile_id;
        END IF;
        <<lanes>>
        FOR lane_attempt IN 1..p_attempts LOOP
            SELECT l.id, l.limits::bigint[] AS limits, l.scan_from, l.source_address INTO the_lane
              FROM lanes l
             WHERE l.queue_id = the_queue.id AND l.head_id IS NOT NULL AND l.blocked_by IS NULL
               AND l.id <> ALL (seen_lanes)
             ORDER BY l.head_at, l.head_id
             LIMIT 1;
            EXIT WHEN NOT FOUND;
            seen_lanes := seen_lanes || the_lane.id::bigint;
            capacity := remaining;
            slot_limits := '{}';
            slot_numbers := '{}';
            counting := '{}';
            rates := '{}';
            FOREACH the_limit IN ARRAY pool_limits || type_limits || the_queue.limits || the_lane.limits LOOP
                SELECT r.* INTO available FROM limit_capacity_v1(the_limit, capacity, the_queue.priority) r;
                capacity := available.capacity;
                slot_limits := slot_limits || array_fill(the_limit, ARRAY[cardinality(available.slots)]);
                slot_numbers := slot_numbers || available.slots;
                IF available.counted THEN
                    counting := counting || the_limit;
                ELSIF available.rate THEN
                    rates := rates || the_limit;
                END IF;
                CONTINUE WHEN capacity > 0;
                missed := missed OR available.retry;
                IF the_limit = ANY (pool_limits) THEN
                    exhausted := false;
                    EXIT queues;
                ELSIF the_limit = ANY (type_limits) THEN
                    closed_profiles := closed_profiles || ARRAY(
                        SELECT other.id::bigint FROM lane_profiles p JOIN lane_profiles other USING (job_type)
                         WHERE p.id = the_queue.profile_id);
                    EXIT lanes;
                ELSIF the_limit = ANY (the_queue.limits) THEN
                    RETURN QUERY SELECT 'queue_full', the_queue.id::bigint, the_limit;
                    EXIT lanes;
                END IF;
                RETURN QUERY SELECT 'lane_full', the_lane.id::bigint, the_limit;
                EXIT;
            END LOOP;
            CONTINUE WHEN capacity = 0;
            WITH next AS (
                SELECT j.id FROM runtime_jobs j
                 WHERE j.lane_id = the_lane.id AND j.state = 'queued' AND j.id >= the_lane.scan_from
                   AND NOT p_worker = ANY (j.excluded_workers)
                 ORDER BY j.id LIMIT capacity FOR NO KEY UPDATE SKIP LOCKED
            ), taken AS (
                UPDATE runtime_jobs j SET state = 'leased', fence = fence + 1 FROM next WHERE j.id = next.id
                RETURNING j.id
            )
            SELECT array_agg(taken.id ORDER BY taken.id) INTO jobs FROM taken;
            RETURN QUERY SELECT 'lane', the_lane.id::bigint, the_queue.id::bigint;
            CONTINUE WHEN jobs IS NULL;
            PERFORM assign_slots_v1(jobs, slot_limits, slot_numbers, counting, rates, the_lane.source_address = '');
            RETURN QUERY SELECT 'job', job, the_lane.id::bigint FROM unnest(jobs) AS job;
            remaining := remaining - cardinality(jobs);
            IF remaining = 0 THEN
                RETURN;
            END IF;
        END LOOP lanes;
    END LOOP queues;
    IF remaining < p_max_jobs THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM lane_queues q WHERE q.eligible_at <= clock_timestamp())
       OR EXISTS (SELECT FROM lanes l WHERE l.eligible_at <= clock_timestamp()) THEN
        RETURN QUERY SELECT 'due', 0::bigint, 0::bigint;
    ELSIF missed OR exhausted THEN
        RETURN QUERY SELECT 'again', 0::bigint, 0::bigint;
    END IF;
END $$;

-- Returns the place of a queue among those of its tier: the age of its head or, in a pool that shares, the service that
-- its organization has had.
CREATE OR REPLACE FUNCTION queue_rank_v1(p_pool text, p_org_slug text, p_head_at timestamptz) RETURNS float
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT served - lead FROM lane_shares WHERE pool = p_pool AND org_slug = p_org_slug),
                    extract(epoch FROM p_head_at))
$$;

-- Returns the priority and what aging adds to it, in steps of ten points, so that no job starves. Aging never reaches
-- the emergency lane. Nothing is added without the setting, or in a pool with `aging` off.
-- Where organizations take turns, the wait counts from the last turn (p_served_at): counted from the age of its head, a
-- large backlog would be served before all later jobs.
CREATE OR REPLACE FUNCTION queue_tier_v1(
    p_pool text, p_priority integer, p_head_at timestamptz, p_served_at timestamptz
) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_priority >= 399 OR aged < 1 OR aged IS NULL THEN p_priority
                WHEN EXISTS (SELECT FROM workers_pool WHERE slug = p_pool AND NOT aging) THEN p_priority
                ELSE least(399, p_priority + 10 * aged)::integer END
      FROM (SELECT floor(
            greatest(0, extract(epoch FROM clock_timestamp() - greatest(p_head_at, p_served_at)))
            / nullif(10 * nullif(current_setting('orchestrator.aging_seconds', true), '')::float, 0)) AS aged) steps
$$;

-- Brings queues in line with their lanes: the head is the oldest job of a lane that may be served. "Nothing to serve" is
-- recorded only under lock 6, tried, after a second read.
CREATE OR REPLACE FUNCTION refresh_queue_heads_v1(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
    head record;
BEGIN
    FOR item IN SELECT DISTINCT q AS id FROM unnest(p_queues) AS q ORDER BY q LOOP
        SELECT head_id, head_at INTO head FROM lanes
         WHERE queue_id = item.id AND head_id IS NOT NULL AND blocked_by IS NULL ORDER BY head_at, head_id LIMIT 1;
        IF FOUND THEN
            UPDATE lane_queues q
               SET head_id = head.head_id, head_at = head.head_at,
                   rank = queue_rank_v1(q.pool, q.org_slug, head.head_at),
                   tier = queue_tier_v1(q.pool, q.priority, head.head_at, q.served_at)
             WHERE q.id = item.id AND q.head_id IS NOT NULL AND q.head_id IS DISTINCT FROM head.head_id;
        ELSIF pg_try_advisory_xact_lock(6, (item.id & 2147483647)::integer) THEN
            UPDATE lane_queues q SET head_id = NULL, head_at = NULL
             WHERE q.id = item.id AND q.head_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id
                                AND l.head_id IS NOT NULL AND l.blocked_by IS NULL);
        END IF;
    END LOOP;
END $$;

-- Charges organizations for the jobs that they got, in a pool that shares: jobs divided by weight. Their queues then come
-- later, and their wait begins again. Without shares nothing is done.
-- p_lanes and p_found run parallel. p_queues: queues that the caller writes next; all are locked here, in order.
CREATE OR REPLACE FUNCTION charge_shares_v1(p_lanes bigint[], p_found integer[], p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    charged bigint[];
    served_queues bigint[];
BEGIN
    WITH taken AS (
        SELECT q.pool, q.org_slug, sum(visited.jobs) AS jobs
          FROM unnest(p_lanes, p_found) AS visited(lane, jobs)
          JOIN lanes l ON l.id = visited.lane JOIN lane_queues q ON q.id = l.queue_id
         WHERE visited.jobs > 0 GROUP BY q.pool, q.org_slug
    ), locked AS (
        SELECT s.id, taken.jobs FROM lane_shares s JOIN taken USING (pool, org_slug)
         ORDER BY s.id FOR NO KEY UPDATE OF s
    ), paid AS (
        UPDATE lane_shares s SET served = s.served + locked.jobs::float / s.weight FROM locked WHERE s.id = locked.id
        RETURNING s.id
    )
    SELECT array_agg(id) INTO charged FROM paid;
    IF charged IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM lane_queues
      WHERE id = ANY (p_queues)
         OR id IN (SELECT queue_id FROM lanes WHERE id = ANY (p_lanes))
         OR id IN (SELECT q.id FROM lane_queues q JOIN lane_shares s USING (pool, org_slug) WHERE s.id = ANY (charged))
      ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(l.queue_id) INTO served_queues
      FROM unnest(p_lanes, p_found) AS visited(lane, jobs) JOIN lanes l ON l.id = visited.lane WHERE visited.jobs > 0;
    UPDATE lane_queues q
       SET rank = s.served - s.lead,
           served_at = CASE WHEN q.id = ANY (served_queues) THEN clock_timestamp() ELSE q.served_at END,
           tier = CASE WHEN q.id = ANY (served_queues) THEN q.priority ELSE q.tier END
      FROM lane_shares s
     WHERE s.id = ANY (charged) AND q.pool = s.pool AND q.org_slug = s.org_slug AND q.head_id IS NOT NULL;
END $$;

-- Moves jobs from retired slots of a limit into its free slots. The caller has locked the limit's row. A slot that a
-- claim has locked looks free until that claim commits: it is skipped.
CREATE OR REPLACE FUNCTION reassign_overflow_slots_v1(p_limit_id bigint) RETURNS void
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

-- Records what a claim found to be empty or full. The last statement of its transaction. Arrays run parallel.
--
-- An absence (lane empty, limit full, queue with nothing to serve) is recorded only by a transaction that gets the
-- advisory lock of that fact without waiting, and after a second read. A transaction that ends the absence holds the same
-- lock, shared, until it commits (release_and_enqueue_v1). A claim that does not get the lock records nothing: the lane
-- stays among those to serve, which is always safe.
CREATE OR REPLACE FUNCTION finalize_claim_v1(
    p_lanes bigint[], p_found integer[],
    p_full_lanes bigint[], p_lane_limits bigint[], p_full_queues bigint[], p_queue_limits bigint[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
    lane_row record;
    seen record;
    next_id bigint;
    next_at timestamptz;
    full_limits bigint[] := '{}';
    full_until timestamptz[] := '{}';
BEGIN
    FOR item IN SELECT DISTINCT l FROM unnest(p_lane_limits || p_queue_limits) AS l ORDER BY l LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(8, (item.l & 2147483647)::integer);
        SELECT * INTO seen FROM limit_is_full_v1(item.l);
        IF seen.is_full THEN
            UPDATE lane_limits SET waiting = true WHERE id = item.l AND NOT waiting;
            full_limits := full_limits || item.l;
            full_until := full_until || seen.eligible_at;
        ELSIF EXISTS (SELECT FROM lane_limit_slots WHERE limit_id = item.l AND retired) THEN
            -- Full because of jobs that it counts without having stopped them: the free slots are theirs.
            PERFORM FROM lane_limits WHERE id = item.l FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM reassign_overflow_slots_v1(item.l);
            END IF;
        END IF;
    END LOOP;
    FOR item IN
        SELECT lane, NULL::bigint AS lim, jobs FROM unnest(p_lanes, p_found) AS visited(lane, jobs)
         UNION ALL
        SELECT lane, lim, NULL FROM unnest(p_full_lanes, p_lane_limits) AS blocked(lane, lim)
         ORDER BY lane
    LOOP
        IF item.lim IS NOT NULL THEN
            UPDATE lanes SET blocked_by = item.lim, eligible_at = full_until[array_position(full_limits, item.lim)]
             WHERE id = item.lane AND blocked_by IS NULL AND item.lim = ANY (full_limits);
            CONTINUE;
        END IF;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(9, (item.lane & 2147483647)::integer);
        SELECT scan_from, head_id INTO lane_row FROM lanes WHERE id = item.lane;
        SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
         WHERE lane_id = item.lane AND state = 'queued' AND id >= lane_row.scan_from ORDER BY id LIMIT 1;
        -- Only a claim that found nothing empties a lane. Otherwise a lane with one job at a time is written twice a job.
        CONTINUE WHEN next_id IS NOT DISTINCT FROM lane_row.head_id OR (next_id IS NULL AND item.jobs > 0);
        IF pg_try_advisory_xact_lock(7, (item.lane & 2147483647)::integer) THEN
            SELECT scan_from INTO lane_row.scan_from FROM lanes WHERE id = item.lane;
            SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
             WHERE lane_id = item.lane AND state = 'queued' AND id >= lane_row.scan_from ORDER BY id LIMIT 1;
            UPDATE lanes SET head_id = next_id, head_at = next_at, scan_from = coalesce(next_id, 9223372036854775807)
             WHERE id = item.lane;
        ELSIF next_id IS NOT NULL THEN
            UPDATE lanes SET head_id = next_id, head_at = next_at
             WHERE id = item.lane AND scan_from = lane_row.scan_from AND head_id IS NOT NULL;
        END IF;
    END LOOP;
    PERFORM charge_shares_v1(p_lanes, p_found, p_full_queues);
    PERFORM refresh_queue_heads_v1(
        (SELECT array_agg(DISTINCT queue_id::bigint) FROM lanes WHERE id = ANY (p_lanes || p_full_lanes)));
    FOR item IN SELECT q, l FROM unnest(p_full_queues, p_queue_limits) AS blocked(q, l) ORDER BY q LOOP
        UPDATE lane_queues SET blocked_by = item.l, eligible_at = full_until[array_position(full_limits, item.l)]
         WHERE id = item.q AND blocked_by IS NULL AND item.l = ANY (full_limits);
    END LOOP;
END $$;
