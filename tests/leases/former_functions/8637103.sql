-- The SQL functions that commit 8637103 created after each migration, as they were.
-- How many may start now by a token bucket that is full again at p_spent_until: p_burst when it is full.
CREATE OR REPLACE FUNCTION lanes_tokens(p_per_hour integer, p_burst integer, p_spent_until timestamptz) RETURNS integer
LANGUAGE sql VOLATILE AS $$
    SELECT floor(p_burst - greatest(0, extract(epoch FROM p_spent_until - clock_timestamp()) * p_per_hour / 3600)
                 + 0.000001)::integer
$$;
-- How many of p_most jobs of this priority may start under one limit now, and the places that they take: locked, so
-- that nobody else gets them. Waits for nobody: `again` says that a place was there but in somebody's hands.
-- `counted`: the job takes a place if there is one and is not held by the limit if there is none.
CREATE OR REPLACE FUNCTION lanes_room(
    p_limit integer, p_most integer, p_priority integer,
    OUT room integer, OUT places bigint[], OUT counted boolean, OUT rate boolean, OUT again boolean
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
    bucket timestamptz;
    start bigint;
BEGIN
    places := '{}';
    counted := false;
    rate := false;
    again := false;
    SELECT * INTO m FROM lane_limits WHERE id = p_limit;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        room := p_most;
        RETURN;
    END IF;
    rate := m.per_hour IS NOT NULL;
    IF rate THEN
        SELECT spent_until INTO bucket FROM lane_limits WHERE id = p_limit FOR NO KEY UPDATE SKIP LOCKED;
        again := NOT FOUND;
        room := CASE WHEN again THEN 0 ELSE least(p_most, lanes_tokens(m.per_hour, m.burst, bucket)) END;
        RETURN;
    END IF;
    counted := p_priority >= m.binds_below IS TRUE;
    -- From a moving start: those that come together do not all try the same rows first.
    start := floor(random() * m.max_active);
    SELECT array_agg(n) INTO places FROM (
        SELECT n FROM lane_limit_slots
         WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired AND n >= start
         ORDER BY n LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED) free;
    IF places IS NULL THEN
        SELECT array_agg(n) INTO places FROM (
            SELECT n FROM lane_limit_slots
             WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired AND n < start
             ORDER BY n LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED) free;
    END IF;
    places := coalesce(places, '{}');
    IF counted THEN
        room := p_most;
        RETURN;
    END IF;
    room := cardinality(places);
    -- A job that the limit does not hold came while this place was in the hands of the one that ended: it counts first.
    IF room > 0 AND m.binds_below IS NOT NULL THEN
        room := greatest(0, room - (SELECT count(*)::integer FROM lane_limit_slots WHERE limit_id = p_limit AND retired));
    END IF;
    again := room = 0 AND EXISTS (
        SELECT FROM lane_limit_slots WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired);
END $$;
-- Whether a limit lets nobody start now, and when that changes by itself. For those who have its guard, 8.
CREATE OR REPLACE FUNCTION lanes_full(p_limit integer, OUT is_full boolean, OUT eligible_at timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
BEGIN
    SELECT * INTO m FROM lane_limits WHERE id = p_limit;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        is_full := false;
    ELSIF m.per_hour IS NOT NULL THEN
        is_full := lanes_tokens(m.per_hour, m.burst, m.spent_until) < 1;
        eligible_at := least(m.until, m.spent_until - (m.burst - 1) * interval '1 hour' / m.per_hour);
    ELSE
        is_full := NOT EXISTS (
            SELECT FROM lane_limit_slots WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired);
        eligible_at := m.until;
    END IF;
END $$;
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
-- Take up to p_most jobs for one worker: the best queue, in it the oldest lane, in it the oldest jobs.
--
-- Promises: waits for nobody. Queues and lanes are chosen without a lock (to skip a locked one would serve a lower
-- priority), slots and jobs are taken with SKIP LOCKED. A limit is N slot rows, so no more than N can hold one.
-- Says nothing final about what it did not find: it reports the lanes and limits that it saw, and `lanes_settle`, the
-- last statement of the transaction, looks again.
--
-- Rows: ('job', runtime_jobs.id, lane), ('lane', lane, queue), ('lane_full', lane, limit), ('queue_full', queue, limit),
-- ('again', 0, 0): it had too little time or luck to say that there is nothing; ('due', 0, 0): somebody's time has come.
CREATE OR REPLACE FUNCTION lanes_take(
    p_pool text, p_profiles integer[], p_worker text, p_most integer, p_looks integer DEFAULT 16
) RETURNS TABLE (what text, id bigint, of integer)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    the_queue record;
    the_lane record;
    under record;
    seen_queues integer[] := '{}';
    seen_lanes integer[] := '{}';
    closed integer[] := '{}';
    of_pool integer[];
    of_type integer[] := '{}';
    types_limited boolean;
    the_limit integer;
    held_limits integer[];
    held_places bigint[];
    counting integer[];
    rates integer[];
    room integer;
    jobs bigint[];
    wanted integer := p_most;
    missed boolean := false;
    exhausted boolean := true;
BEGIN
    SELECT coalesce(array_agg(m.id), '{}') INTO of_pool
      FROM lane_limits m WHERE m.scope = 'pool' AND m.org_slug = '' AND m.key = p_pool;
    types_limited := EXISTS (SELECT FROM lane_limits m WHERE m.scope = 'job_type');
    <<queues>>
    FOR look IN 1..p_looks LOOP
        SELECT best.* INTO the_queue
          FROM unnest(p_profiles) AS fitting(profile)
         CROSS JOIN LATERAL (
            SELECT q.id, q.profile_id, q.priority, q.limits, q.tier, q.rank, q.head_id
              FROM lane_queues q
             WHERE q.pool = p_pool AND q.profile_id = fitting.profile
               AND q.head_id IS NOT NULL AND q.blocked_by IS NULL AND q.id <> ALL (seen_queues)
             ORDER BY q.tier DESC, q.rank, q.head_id
             LIMIT 1) best
         WHERE fitting.profile <> ALL (closed)
         ORDER BY best.tier DESC, best.rank, best.head_id
         LIMIT 1;
        exhausted := FOUND;
        EXIT WHEN NOT exhausted;
        seen_queues := seen_queues || the_queue.id;
        -- Who puts a limit on this queue holds guard 5 alone, and then knows of every job that runs without it.
        IF NOT pg_try_advisory_xact_lock_shared(5, the_queue.id) THEN
            missed := true;
            CONTINUE;
        END IF;
        SELECT q.limits INTO the_queue.limits FROM lane_queues q WHERE q.id = the_queue.id;
        IF types_limited THEN
            SELECT coalesce(array_agg(m.id), '{}') INTO of_type
              FROM lane_profiles p JOIN lane_limits m ON m.scope = 'job_type' AND m.org_slug = '' AND m.key = p.job_type
             WHERE p.id = the_queue.profile_id;
        END IF;
        <<lanes>>
        FOR lane_look IN 1..p_looks LOOP
            SELECT l.id, l.limits, l.scan_from, l.source_address INTO the_lane
              FROM lanes l
             WHERE l.queue_id = the_queue.id AND l.head_id IS NOT NULL AND l.blocked_by IS NULL
               AND l.id <> ALL (seen_lanes)
             ORDER BY l.head_at, l.head_id
             LIMIT 1;
            EXIT WHEN NOT FOUND;
            seen_lanes := seen_lanes || the_lane.id;
            room := wanted;
            held_limits := '{}';
            held_places := '{}';
            counting := '{}';
            rates := '{}';
            FOREACH the_limit IN ARRAY of_pool || of_type || the_queue.limits || the_lane.limits LOOP
                SELECT r.* INTO under FROM lanes_room(the_limit, room, the_queue.priority) r;
                room := under.room;
                held_limits := held_limits || array_fill(the_limit, ARRAY[cardinality(under.places)]);
                held_places := held_places || under.places;
                IF under.counted THEN
                    counting := counting || the_limit;
                ELSIF under.rate THEN
                    rates := rates || the_limit;
                END IF;
                CONTINUE WHEN room > 0;
                missed := missed OR under.again;
                IF the_limit = ANY (of_pool) THEN
                    exhausted := false;
                    EXIT queues;
                ELSIF the_limit = ANY (of_type) THEN
                    closed := closed || ARRAY(
                        SELECT other.id FROM lane_profiles p JOIN lane_profiles other USING (job_type)
                         WHERE p.id = the_queue.profile_id);
                    EXIT lanes;
                ELSIF the_limit = ANY (the_queue.limits) THEN
                    RETURN QUERY SELECT 'queue_full', the_queue.id::bigint, the_limit;
                    EXIT lanes;
                END IF;
                RETURN QUERY SELECT 'lane_full', the_lane.id::bigint, the_limit;
                EXIT;
            END LOOP;
            CONTINUE WHEN room = 0;
            WITH next AS (
                SELECT j.id FROM runtime_jobs j
                 WHERE j.lane_id = the_lane.id AND j.state = 'queued' AND j.id >= the_lane.scan_from
                   AND NOT p_worker = ANY (j.excluded_workers)
                 ORDER BY j.id LIMIT room FOR NO KEY UPDATE SKIP LOCKED
            ), taken AS (
                UPDATE runtime_jobs j SET state = 'leased', fence = fence + 1 FROM next WHERE j.id = next.id
                RETURNING j.id
            )
            SELECT array_agg(taken.id ORDER BY taken.id) INTO jobs FROM taken;
            RETURN QUERY SELECT 'lane', the_lane.id::bigint, the_queue.id;
            CONTINUE WHEN jobs IS NULL;
            PERFORM lanes_hold(jobs, held_limits, held_places, counting, rates, the_lane.source_address = '');
            RETURN QUERY SELECT 'job', job, the_lane.id FROM unnest(jobs) AS job;
            wanted := wanted - cardinality(jobs);
            IF wanted = 0 THEN
                RETURN;
            END IF;
        END LOOP lanes;
    END LOOP queues;
    IF wanted < p_most THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM lane_queues q WHERE q.eligible_at <= clock_timestamp())
       OR EXISTS (SELECT FROM lanes l WHERE l.eligible_at <= clock_timestamp()) THEN
        RETURN QUERY SELECT 'due', 0::bigint, 0;
    ELSIF missed OR exhausted THEN
        RETURN QUERY SELECT 'again', 0::bigint, 0;
    END IF;
END $$;
-- Where a queue stands among those of its priority: by the age of its head or, in a pool that shares, by what its
-- organization has had.
CREATE OR REPLACE FUNCTION lanes_rank_of(p_pool text, p_org text, p_head_at timestamptz) RETURNS float
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT served - lead FROM lane_shares WHERE pool = p_pool AND org_slug = p_org),
                    extract(epoch FROM p_head_at))
$$;

DROP FUNCTION IF EXISTS lanes_tier_of(integer, timestamptz);  -- of an older form of this
-- The priority and what waiting adds to it, in steps of ten points: so that nothing waits for ever. Nothing grows into
-- the emergency lane. Without the setting nothing is added. Where organizations take turns (p_served_at) it is the wait
-- since the last turn: by its age alone a large backlog would be before all that came later.
CREATE OR REPLACE FUNCTION lanes_tier_of(p_priority integer, p_head_at timestamptz, p_served_at timestamptz)
RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_priority >= 399 THEN p_priority ELSE least(399, p_priority + coalesce(10 * floor(
        greatest(0, extract(epoch FROM clock_timestamp() - greatest(p_head_at, p_served_at)))
        / nullif(10 * nullif(current_setting('orchestrator.aging_seconds', true), '')::float, 0)), 0))::integer END
$$;

-- Bring queues in line with their lanes: the oldest that may be served is the head. "Nothing to serve" is written only
-- under guard 6, tried, after a fresh look.
CREATE OR REPLACE FUNCTION lanes_rank(p_queues integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    head record;
BEGIN
    FOR one IN SELECT DISTINCT q AS id FROM unnest(p_queues) AS q ORDER BY q LOOP
        SELECT head_id, head_at INTO head FROM lanes
         WHERE queue_id = one.id AND head_id IS NOT NULL AND blocked_by IS NULL ORDER BY head_at, head_id LIMIT 1;
        IF FOUND THEN
            UPDATE lane_queues q
               SET head_id = head.head_id, head_at = head.head_at,
                   rank = lanes_rank_of(q.pool, q.org_slug, head.head_at),
                   tier = lanes_tier_of(q.priority, head.head_at, q.served_at)
             WHERE q.id = one.id AND q.head_id IS NOT NULL AND q.head_id IS DISTINCT FROM head.head_id;
        ELSIF pg_try_advisory_xact_lock(6, one.id) THEN
            UPDATE lane_queues q SET head_id = NULL, head_at = NULL
             WHERE q.id = one.id AND q.head_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id
                                AND l.head_id IS NOT NULL AND l.blocked_by IS NULL);
        END IF;
    END LOOP;
END $$;
-- In a pool that shares: who got jobs comes later by their number over its weight, and has waited no more. Elsewhere there are no shares, and
-- nothing is done. p_also: queues that the caller will write; all are locked here, in order.
CREATE OR REPLACE FUNCTION lanes_charge(p_lanes integer[], p_found integer[], p_also integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    charged integer[];
    turned integer[];
BEGIN
    WITH taken AS (
        SELECT q.pool, q.org_slug, sum(looked.jobs) AS jobs
          FROM unnest(p_lanes, p_found) AS looked(lane, jobs)
          JOIN lanes l ON l.id = looked.lane JOIN lane_queues q ON q.id = l.queue_id
         WHERE looked.jobs > 0 GROUP BY q.pool, q.org_slug
    ), held AS (
        SELECT s.id, taken.jobs FROM lane_shares s JOIN taken USING (pool, org_slug)
         ORDER BY s.id FOR NO KEY UPDATE OF s
    ), paid AS (
        UPDATE lane_shares s SET served = s.served + held.jobs::float / s.weight FROM held WHERE s.id = held.id
        RETURNING s.id
    )
    SELECT array_agg(id) INTO charged FROM paid;
    IF charged IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM lane_queues
      WHERE id = ANY (p_also)
         OR id IN (SELECT queue_id FROM lanes WHERE id = ANY (p_lanes))
         OR id IN (SELECT q.id FROM lane_queues q JOIN lane_shares s USING (pool, org_slug) WHERE s.id = ANY (charged))
      ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(l.queue_id) INTO turned
      FROM unnest(p_lanes, p_found) AS looked(lane, jobs) JOIN lanes l ON l.id = looked.lane WHERE looked.jobs > 0;
    UPDATE lane_queues q
       SET rank = s.served - s.lead,
           served_at = CASE WHEN q.id = ANY (turned) THEN clock_timestamp() ELSE q.served_at END,
           tier = CASE WHEN q.id = ANY (turned) THEN q.priority ELSE q.tier END
      FROM lane_shares s
     WHERE s.id = ANY (charged) AND q.pool = s.pool AND q.org_slug = s.org_slug AND q.head_id IS NOT NULL;
END $$;
-- Jobs in retired slots of a limit move into its free ones. The caller holds the limit's row. A slot that a claim has in
-- its hands looks free until that commits: such a one is passed over.
CREATE OR REPLACE FUNCTION lanes_hand_on(p_limit integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT free.n, old.n AS old_n, old.job_id
          FROM (SELECT n, row_number() OVER (ORDER BY n) AS place
                  FROM (SELECT n FROM lane_limit_slots
                         WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired
                         ORDER BY n FOR NO KEY UPDATE SKIP LOCKED) untouched) free
          JOIN (SELECT n, job_id, row_number() OVER (ORDER BY n) AS place FROM lane_limit_slots
                 WHERE limit_id = p_limit AND retired) old USING (place)
    LOOP
        DELETE FROM lane_limit_slots WHERE limit_id = p_limit AND n = one.old_n;
        UPDATE lane_limit_slots SET job_id = one.job_id WHERE limit_id = p_limit AND n = one.n;
    END LOOP;
END $$;
-- The last statement of a claim: write down what it found to be over. Arrays run parallel.
--
-- A fact that says "nothing there" (lane empty, limit full, queue with nothing to serve) is written only by who gets
-- its guard without waiting and then looks afresh; whoever makes such a fact false holds the same guard shared until
-- commit (`lanes_end`). Who does not get it writes nothing: the lane stays in the choice, which is never wrong.
-- Guards: 4 queues of an organization, 5 limits of a queue, 8 limit full, 7 lane empty, 6 queue without anything to
-- serve, 10 jobs of a source address, 11 jobs of a concurrency key; 9 only keeps two from the same work.
-- Order of locks, here and in `lanes_end`: guard 8, limits, guard 7, lanes, guard 6, shares, queues.
CREATE OR REPLACE FUNCTION lanes_settle(
    p_lanes integer[], p_found integer[],
    p_full_lanes integer[], p_lane_limits integer[], p_full_queues integer[], p_queue_limits integer[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    lane_row record;
    seen record;
    next_id bigint;
    next_at timestamptz;
    full_limits integer[] := '{}';
    full_until timestamptz[] := '{}';
BEGIN
    FOR one IN SELECT DISTINCT l FROM unnest(p_lane_limits || p_queue_limits) AS l ORDER BY l LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(8, one.l);
        SELECT * INTO seen FROM lanes_full(one.l);
        IF seen.is_full THEN
            UPDATE lane_limits SET waiting = true WHERE id = one.l AND NOT waiting;
            full_limits := full_limits || one.l;
            full_until := full_until || seen.eligible_at;
        ELSIF EXISTS (SELECT FROM lane_limit_slots WHERE limit_id = one.l AND retired) THEN
            -- Found full because of jobs that count without having been held: the free places are theirs.
            PERFORM FROM lane_limits WHERE id = one.l FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM lanes_hand_on(one.l);
            END IF;
        END IF;
    END LOOP;
    FOR one IN
        SELECT lane, NULL::integer AS lim, jobs FROM unnest(p_lanes, p_found) AS looked(lane, jobs)
         UNION ALL
        SELECT lane, lim, NULL FROM unnest(p_full_lanes, p_lane_limits) AS blocked(lane, lim)
         ORDER BY lane
    LOOP
        IF one.lim IS NOT NULL THEN
            UPDATE lanes SET blocked_by = one.lim, eligible_at = full_until[array_position(full_limits, one.lim)]
             WHERE id = one.lane AND blocked_by IS NULL AND one.lim = ANY (full_limits);
            CONTINUE;
        END IF;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(9, one.lane);
        SELECT scan_from, head_id INTO lane_row FROM lanes WHERE id = one.lane;
        SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
         WHERE lane_id = one.lane AND state = 'queued' AND id >= lane_row.scan_from ORDER BY id LIMIT 1;
        -- Only a claim that found nothing empties a lane: one that is emptied by every job is written twice a job.
        CONTINUE WHEN next_id IS NOT DISTINCT FROM lane_row.head_id OR (next_id IS NULL AND one.jobs > 0);
        IF pg_try_advisory_xact_lock(7, one.lane) THEN
            SELECT scan_from INTO lane_row.scan_from FROM lanes WHERE id = one.lane;
            SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
             WHERE lane_id = one.lane AND state = 'queued' AND id >= lane_row.scan_from ORDER BY id LIMIT 1;
            UPDATE lanes SET head_id = next_id, head_at = next_at, scan_from = coalesce(next_id, 9223372036854775807)
             WHERE id = one.lane;
        ELSIF next_id IS NOT NULL THEN
            UPDATE lanes SET head_id = next_id, head_at = next_at
             WHERE id = one.lane AND scan_from = lane_row.scan_from AND head_id IS NOT NULL;
        END IF;
    END LOOP;
    PERFORM lanes_charge(p_lanes, p_found, p_full_queues);
    PERFORM lanes_rank(
        (SELECT array_agg(DISTINCT queue_id) FROM lanes WHERE id = ANY (p_lanes || p_full_lanes)));
    FOR one IN SELECT q, l FROM unnest(p_full_queues, p_queue_limits) AS blocked(q, l) ORDER BY q LOOP
        UPDATE lane_queues SET blocked_by = one.l, eligible_at = full_until[array_position(full_limits, one.l)]
         WHERE id = one.q AND blocked_by IS NULL AND one.l = ANY (full_limits);
    END LOOP;
END $$;
-- Lanes of these queues have something to serve (again): put the queues into the choice. p_awaited: limits that block
-- no more; p_due: take those out, too, whose time has come.
--
-- A tenant that comes back begins where the one stands that was served least: it has no claim to what it did not use.
-- But its first three turns come first, so that who has little to do does not wait for who always has: each is as far
-- ahead as any other that came, and who comes again has used up what it was ahead, or still is and gets no more.
CREATE OR REPLACE FUNCTION lanes_show(p_queues integer[], p_awaited integer[], p_due boolean) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    freed integer[] := '{}';
    woken text[] := '{}';
    pool_name text;
BEGIN
    FOR one IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM pg_advisory_xact_lock_shared(6, one.id);
    END LOOP;
    PERFORM lanes_floor(p_queues);
    IF p_awaited <> '{}' OR p_due THEN
        SELECT coalesce(array_agg(id), '{}') INTO freed FROM (
            SELECT id FROM lane_queues
             WHERE blocked_by = ANY (p_awaited) OR (p_due AND eligible_at <= clock_timestamp())
             ORDER BY id FOR NO KEY UPDATE) q;
        PERFORM FROM lane_queues WHERE id = ANY (freed || p_queues) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lane_queues SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (freed);
        SELECT coalesce(array_agg(DISTINCT pool), '{}') INTO woken
          FROM lane_queues WHERE id = ANY (freed) AND head_id IS NOT NULL;
    END IF;
    FOR one IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE lane_queues q
           SET head_id = head.head_id, head_at = head.head_at,
               rank = lanes_rank_of(q.pool, q.org_slug, head.head_at),
               tier = lanes_tier_of(q.priority, head.head_at, q.served_at)
          FROM (SELECT head_id, head_at FROM lanes
                 WHERE queue_id = one.id AND head_id IS NOT NULL AND blocked_by IS NULL
                 ORDER BY head_at, head_id LIMIT 1) head
         WHERE q.id = one.id AND (q.head_id IS NULL OR q.head_id > head.head_id)
        RETURNING CASE WHEN q.blocked_by IS NULL THEN q.pool END INTO pool_name;
        IF NOT FOUND THEN
            -- It has an older head: one that was taken, or that not everybody may take, calls nobody to the others.
            SELECT q.pool INTO pool_name FROM lane_queues q JOIN runtime_jobs head ON head.id = q.head_id
             WHERE q.id = one.id AND q.blocked_by IS NULL AND (head.state <> 'queued' OR head.excluded_workers <> '{}');
        END IF;
        IF pool_name IS NOT NULL THEN
            woken := woken || pool_name;
        END IF;
    END LOOP;
    -- Only now, never for a job that joins others: NOTIFY takes a lock of the whole cluster at commit.
    PERFORM pg_notify('lanes', pool) FROM (SELECT DISTINCT unnest(woken) AS pool) w;
END $$;

CREATE OR REPLACE FUNCTION lanes_floor(p_queues integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    least float;
BEGIN
    FOR one IN
        SELECT DISTINCT s.id, s.pool FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.id = ANY (p_queues) AND NOT EXISTS (
            SELECT FROM lane_queues other WHERE other.pool = s.pool AND other.org_slug = s.org_slug
               AND other.head_id IS NOT NULL AND other.blocked_by IS NULL)
         ORDER BY s.id
    LOOP
        SELECT s.served INTO least FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.pool = one.pool AND q.head_id IS NOT NULL AND q.blocked_by IS NULL ORDER BY q.rank LIMIT 1;
        UPDATE lane_shares SET served = least, lead = 3 WHERE id = one.id AND served < least;
    END LOOP;
END $$;
-- The last statement of every other verb: give back the slots of jobs that are held no more, and put jobs into their
-- lanes. p_raised: limits that have more room now. All of it makes a "nothing there" false, so its guard is held, shared, until commit.
CREATE OR REPLACE FUNCTION lanes_end(
    p_freed bigint[], p_jobs bigint[], p_lanes integer[], p_ats timestamptz[], p_raised integer[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    freed integer[];
    lowered integer[];
    awaited integer[] := '{}';
    changed integer[] := '{}';
    touched integer[];
BEGIN
    FOR one IN SELECT DISTINCT limit_id AS id FROM lane_limit_slots WHERE job_id = ANY (p_freed) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(8, one.id);
    END LOOP;
    -- A limit that was lowered while more ran: whoever ends hands the place on to a job that has none that counts.
    SELECT coalesce(array_agg(id ORDER BY id), '{}') INTO lowered FROM (
        SELECT id FROM lane_limits l
         WHERE id IN (SELECT limit_id FROM lane_limit_slots WHERE job_id = ANY (p_freed))
           AND EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = l.id AND s.retired)
         ORDER BY id FOR NO KEY UPDATE) l;
    DELETE FROM lane_limit_slots WHERE job_id = ANY (p_freed) AND retired;
    WITH given AS (UPDATE lane_limit_slots SET job_id = NULL WHERE job_id = ANY (p_freed) RETURNING limit_id)
    SELECT coalesce(array_agg(DISTINCT limit_id), '{}') INTO freed FROM given;
    FOR one IN SELECT id FROM unnest(lowered) AS id LOOP
        PERFORM lanes_hand_on(one.id);
    END LOOP;
    FOR one IN SELECT DISTINCT id FROM unnest(freed || p_raised) AS id ORDER BY 1 LOOP
        UPDATE lane_limits SET waiting = false WHERE id = one.id AND waiting;
        IF FOUND THEN
            awaited := awaited || one.id;
        END IF;
    END LOOP;
    FOR one IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, one.id);
    END LOOP;
    IF awaited <> '{}' THEN
        SELECT coalesce(array_agg(id), '{}') INTO changed FROM lanes WHERE blocked_by = ANY (awaited);
        PERFORM FROM lanes WHERE id = ANY (changed || p_lanes) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE blocked_by = ANY (awaited);
    END IF;
    -- Most jobs come into a lane that has older ones: then no row is written and no queue looked at.
    FOR one IN
        SELECT lane AS id, min(job) AS job, min(at) AS at
          FROM unnest(p_lanes, p_jobs, p_ats) AS entered(lane, job, at) GROUP BY lane ORDER BY lane
    LOOP
        UPDATE lanes l
           SET scan_from = least(l.scan_from, one.job), head_id = least(l.head_id, one.job),
               head_at = least(l.head_at, one.at)
         WHERE l.id = one.id AND (l.head_id IS NULL OR l.head_id > one.job OR l.scan_from > one.job);
        IF FOUND THEN
            changed := changed || one.id;
        ELSE
            -- It waits behind a head that was taken or that not everybody may take, or is that head, given back: the
            -- lane is in the choice, but nobody was called to it.
            PERFORM pg_notify('lanes', q.pool)
               FROM lanes l JOIN lane_queues q ON q.id = l.queue_id JOIN runtime_jobs head ON head.id = l.head_id
              WHERE l.id = one.id AND l.blocked_by IS NULL AND q.blocked_by IS NULL
                AND (head.state <> 'queued' OR head.id = one.job OR head.excluded_workers <> '{}');
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT queue_id), '{}') INTO touched
      FROM lanes WHERE id = ANY (changed) AND head_id IS NOT NULL AND blocked_by IS NULL;
    IF touched <> '{}' OR awaited <> '{}' THEN
        PERFORM lanes_show(touched, awaited, false);
    END IF;
END $$;
-- Put back into the choice whose time has come. Returns how many lanes and queues.
CREATE OR REPLACE FUNCTION lanes_due(p_most integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    due_lanes integer[];
    due_queues integer[];
BEGIN
    SELECT coalesce(array_agg(id), '{}') INTO due_lanes FROM (
        SELECT id FROM lanes WHERE id IN (
            SELECT id FROM lanes WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_most)
         ORDER BY id FOR NO KEY UPDATE) l;
    UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (due_lanes) AND eligible_at <= clock_timestamp();
    SELECT coalesce(array_agg(DISTINCT id), '{}') INTO due_queues FROM (
        SELECT queue_id AS id FROM lanes WHERE id = ANY (due_lanes) AND head_id IS NOT NULL
         UNION (SELECT id FROM lane_queues WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_most)) q;
    PERFORM lanes_show(due_queues, '{}', true);
    RETURN cardinality(due_lanes) + cardinality(due_queues);
END $$;

-- The clock's: lift the priority of what waits. Those that somebody writes at the moment are lifted in the next round.
CREATE OR REPLACE FUNCTION lanes_age(p_most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    lifted integer;
BEGIN
    UPDATE lane_queues q SET tier = lanes_tier_of(q.priority, q.head_at, q.served_at)
      FROM (SELECT id FROM lane_queues
             WHERE head_id IS NOT NULL AND blocked_by IS NULL AND tier < lanes_tier_of(priority, head_at, served_at)
             ORDER BY id LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED) old
     WHERE q.id = old.id;
    GET DIAGNOSTICS lifted = ROW_COUNT;
    RETURN lifted;
END $$;
-- Lanes whose head does not wait any more.
CREATE OR REPLACE FUNCTION lanes_behind(p_most integer) RETURNS SETOF integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.id FROM lanes l JOIN runtime_jobs j ON j.id = l.head_id
                  WHERE j.state <> 'queued' ORDER BY l.id LIMIT p_most;
END $$;
-- The clock's part: claims only try a guard, so under a steady stream of submits a lane's bound may stay behind and its
-- scan grow long. Here the guard is waited for, one lane a transaction.
CREATE OR REPLACE FUNCTION lanes_advance(p_lane integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    bound bigint;
    next_id bigint;
    next_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7, p_lane);
    SELECT scan_from INTO bound FROM lanes WHERE id = p_lane;
    SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
     WHERE lane_id = p_lane AND state = 'queued' AND id >= bound ORDER BY id LIMIT 1;
    UPDATE lanes SET head_id = next_id, head_at = next_at, scan_from = coalesce(next_id, 9223372036854775807)
     WHERE id = p_lane AND head_id IS DISTINCT FROM next_id;
    IF next_id IS NOT NULL THEN  -- perhaps it came while the head was being taken: then nobody was called
        PERFORM pg_notify('lanes', q.pool) FROM lanes l JOIN lane_queues q ON q.id = l.queue_id WHERE l.id = p_lane;
    END IF;
    PERFORM lanes_rank(ARRAY[(SELECT queue_id FROM lanes WHERE id = p_lane)]);
END $$;
