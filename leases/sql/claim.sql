-- The claim: one statement locks the workers, chooses lanes, takes jobs, writes leases and events, and records what turned
-- out to be empty or full (claim). It is the only implementation of a claim. The claims of all workers run it at the
-- same time.
--
-- Advisory locks and the order of all locks: leases/advisory_locks.py. Lock keys have 32 bits, ids 64: `id & 2147483647`.
-- Settings of the functions: plans are generic, because an array argument makes PL/pgSQL plan anew at each call, which
-- cost more than the statements themselves. Sequential scans, hash joins and merge joins are off because statistics of
-- small, busy tables are stale: a plan for ten rows meets ten thousand. Bitmap scans are off because they read all versions
-- of a head, and not the newest first.

-- Returns the SHA-256 of an event as runtime_jobs/events.py computes it: of the canonical JSON of the row, keys sorted.
-- p_payload: canonical JSON. The events of a claim have an empty payload, so each caller passes '{}'; nothing here makes
-- JSON canonical. A caller with another payload must prove first that both texts are equal. A whole second has no
-- fraction, as in Python's isoformat.
CREATE OR REPLACE FUNCTION event_hash(
    p_event_ulid text, p_job_ulid text, p_seq bigint, p_event_type text, p_actor_kind text, p_actor_id text,
    p_payload text, p_created_at timestamptz, p_org_slug text, p_job_type text, p_correlation_id text,
    p_worker_id text, p_from_state text, p_to_state text, p_fence bigint, p_prev_hash text
) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN encode(sha256(convert_to(
        '{"actor_id":' || to_json(p_actor_id)::text
        || ',"actor_kind":' || to_json(p_actor_kind)::text
        || ',"correlation_id":' || to_json(p_correlation_id)::text
        || ',"created_at":"'
        || replace(to_char(p_created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '.000000', '')
        || '+00:00","event_type":' || to_json(p_event_type)::text
        || ',"event_ulid":' || to_json(p_event_ulid)::text
        || ',"fence":' || p_fence
        || ',"from_state":' || coalesce(to_json(p_from_state)::text, 'null')
        || ',"job_type":' || to_json(p_job_type)::text
        || ',"job_ulid":' || to_json(p_job_ulid)::text
        || ',"org_slug":' || to_json(p_org_slug)::text
        || ',"payload":' || p_payload
        || ',"prev_hash":' || to_json(p_prev_hash)::text
        || ',"seq":' || p_seq
        || ',"to_state":' || coalesce(to_json(p_to_state)::text, 'null')
        || ',"worker_id":' || coalesce(to_json(p_worker_id)::text, 'null') || '}', 'UTF8')), 'hex');
END $$;

-- Records what a claim found to be empty or full; the last part of a claim. Arrays run parallel.
-- p_lanes: the lanes that the claim tried; p_found and p_last_jobs: how many jobs it took there, and the last of them;
-- p_lane_limits: the limit that was full.
--
-- An absence (lane empty, limit full, queue with nothing to serve) is recorded only by a transaction that gets the
-- advisory lock of that fact without waiting, and after a second read. A transaction that ends the absence holds the same
-- lock, shared, until it commits. A claim that does not get the lock records nothing: the lane stays among those to
-- serve, which is always safe.
CREATE OR REPLACE FUNCTION finalize_claim(
    p_lanes bigint[], p_found integer[], p_last_jobs bigint[], p_lane_limits bigint[], p_full_queues bigint[],
    p_queue_limits bigint[], p_shared boolean
) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    item record;
    seen record;
    position_id bigint;
    next_id bigint;
    next_at timestamptz;
    generation_now integer := newest_generation();
    changed_queues bigint[] := '{}';
    queues bigint[];
    the_queue bigint;
    full_limit bigint;
    full_limits bigint[] := '{}';
    full_until timestamptz[] := '{}';
BEGIN
    IF p_full_queues <> '{}' OR cardinality(array_remove(p_lane_limits, NULL)) > 0 THEN
        FOR item IN SELECT DISTINCT l FROM unnest(p_lane_limits || p_queue_limits) AS l WHERE l IS NOT NULL ORDER BY l LOOP
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(8, (item.l & 2147483647)::integer);
            SELECT * INTO seen FROM limit_is_full(item.l);
            IF seen.is_full THEN
                UPDATE lane_limits SET waiting = true WHERE id = item.l AND NOT waiting;
                full_limits := full_limits || item.l;
                full_until := full_until || seen.eligible_at;
            ELSIF EXISTS (SELECT FROM lane_limit_slots WHERE limit_id = item.l AND retired) THEN
                -- Full because of jobs that it counts without having stopped them: the free slots are theirs.
                PERFORM FROM lane_limits WHERE id = item.l FOR NO KEY UPDATE SKIP LOCKED;
                IF FOUND THEN
                    PERFORM reassign_overflow_slots(item.l);
                END IF;
            END IF;
        END LOOP;
    END IF;
    FOR item IN
        SELECT visited.lane, visited.jobs, visited.last_job, visited.full_limit, l.version, l.queue_id, l.head_id,
               l.scan_from, next.id AS next_id, next.created_at AS next_at
          FROM unnest(p_lanes, p_found, p_last_jobs, p_lane_limits) AS visited(lane, jobs, last_job, full_limit)
         CROSS JOIN LATERAL (
            SELECT h.* FROM lane_heads h WHERE h.lane_id = visited.lane ORDER BY h.version DESC LIMIT 1) l
          LEFT JOIN LATERAL (
            SELECT j.id, j.created_at FROM runtime_jobs j
             WHERE j.lane_id = l.lane_id AND j.state = 'queued' AND j.id >= l.scan_from ORDER BY j.id LIMIT 1) next ON true
         ORDER BY visited.lane
    LOOP
        IF item.full_limit IS NOT NULL THEN
            changed_queues := changed_queues || item.queue_id::bigint;
            UPDATE lane_heads
               SET version = nextval('lane_versions'), blocked_by = item.full_limit,
                   eligible_at = full_until[array_position(full_limits, item.full_limit)]
             WHERE lane_id = item.lane AND version >= item.version AND blocked_by IS NULL
               AND item.full_limit = ANY (full_limits);
            CONTINUE;
        END IF;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(9, (item.lane & 2147483647)::integer);
        IF item.jobs = 0 THEN
            changed_queues := changed_queues || item.queue_id::bigint;
        END IF;
        CONTINUE WHEN item.next_id IS NOT DISTINCT FROM item.head_id;
        -- The scan position moves, and a lane becomes empty, with a claim that found nothing or many jobs, and with one
        -- of sixteen others. More often, a lane with one job at a time would be written twice a job, and each submit
        -- would wait for the commit of a claim. Never, and scans would pass all the jobs that the lane ever had.
        IF (item.jobs = 0 OR item.jobs >= 16 OR hashint8(item.last_job) & 15 = 0)
           AND pg_try_advisory_xact_lock(7, (item.lane & 2147483647)::integer) THEN
            SELECT l.scan_from INTO position_id FROM lane_heads l
             WHERE l.lane_id = item.lane ORDER BY l.version DESC LIMIT 1;
            SELECT j.id, j.created_at INTO next_id, next_at FROM runtime_jobs j
             WHERE j.lane_id = item.lane AND j.state = 'queued' AND j.id >= position_id ORDER BY j.id LIMIT 1;
            UPDATE lane_heads
               SET version = nextval('lane_versions'), generation = generation_now, head_id = next_id, head_at = next_at,
                   scan_from = coalesce(next_id, 9223372036854775807)
             WHERE lane_id = item.lane AND version >= item.version;
        ELSIF item.next_id IS NOT NULL THEN
            UPDATE lane_heads
               SET version = nextval('lane_versions'), generation = generation_now,
                   head_id = item.next_id, head_at = item.next_at
             WHERE lane_id = item.lane AND version >= item.version
               AND head_id = item.head_id AND scan_from = item.scan_from;
        ELSE
            CONTINUE;
        END IF;
        changed_queues := changed_queues || item.queue_id::bigint;
    END LOOP;
    IF p_shared THEN
        PERFORM charge_shares(p_lanes, p_found, p_full_queues);
    END IF;
    -- All queues in one order of keys, for both kinds of changes: with one order for each kind, two claims that blocked
    -- what the other one had served met deadlocks.
    queues := changed_queues || p_full_queues;
    IF cardinality(queues) > 1 THEN
        queues := ARRAY(SELECT DISTINCT q FROM unnest(queues) AS q ORDER BY q);
    END IF;
    FOREACH the_queue IN ARRAY queues LOOP
        full_limit := p_queue_limits[array_position(p_full_queues, the_queue)];
        IF full_limit = ANY (full_limits) THEN
            UPDATE queue_heads
               SET version = nextval('lane_versions'), blocked_by = full_limit,
                   eligible_at = full_until[array_position(full_limits, full_limit)]
             WHERE queue_id = the_queue AND blocked_by IS NULL
               AND version >= (
                   SELECT n.version FROM queue_heads n WHERE n.queue_id = the_queue ORDER BY n.version DESC LIMIT 1);
        END IF;
        IF the_queue = ANY (changed_queues) THEN
            PERFORM refresh_queue_head(the_queue);
        END IF;
    END LOOP;
END $$;

-- Leases the jobs, which the caller has locked, to workers: leases, events and the jobs themselves, each written once.
-- p_slots: the slot of each job, see claim. p_names: the workers by their place. Other arguments: those of claim.
-- Rows: in the order of p_jobs. A function of its own costs a claim nothing that was measured: 1.13 ms of a processor
-- with the statement in the claim, and here, in turns.
CREATE OR REPLACE FUNCTION lease_jobs(
    p_jobs bigint[], p_slots integer[], p_names text[], p_sessions text[], p_max_jobs integer, p_acknowledge boolean,
    p_lease_ids text[], p_event_ids text[], p_now timestamptz
) RETURNS TABLE (lease runtime_worker_leases, job runtime_jobs) LANGUAGE plpgsql AS $$
BEGIN
    p_now := coalesce(p_now, clock_timestamp());
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT assigned.id, assigned.slot, assigned.position, p_lease_ids[assigned.slot] AS lease_ulid,
               p_event_ids[2 * assigned.slot - 1] AS leased_ulid, p_event_ids[2 * assigned.slot] AS started_ulid,
               p_names[(assigned.slot - 1) / p_max_jobs + 1] AS worker_id,
               p_sessions[(assigned.slot - 1) / p_max_jobs + 1] AS session
          FROM unnest(p_jobs, p_slots) WITH ORDINALITY AS assigned(id, slot, position)
    ), taken AS MATERIALIZED (
        SELECT given.position, given.lease_ulid, given.worker_id, given.session, given.leased_ulid, given.started_ulid,
               j.id, j.job_ulid, j.org_slug, j.job_type, j.correlation_id, j.pool, j.event_seq, j.event_head, j.fence + 1 AS fence, j.lease_ttl_seconds, j.heartbeat_interval_seconds,
               j.acknowledge_within_seconds,
               event_hash(
                   given.leased_ulid, j.job_ulid, j.event_seq + 1, 'job.leased', 'worker',
                   given.worker_id, '{}', p_now, j.org_slug, j.job_type, j.correlation_id, given.worker_id,
                   'queued', 'leased', j.fence + 1, j.event_head) AS leased_hash
          FROM given JOIN runtime_jobs j ON j.id = given.id
    ), chained AS MATERIALIZED (
        SELECT taken.*, CASE WHEN p_acknowledge THEN leased_hash ELSE event_hash(
                   started_ulid, job_ulid, event_seq + 2, 'job.started', 'worker',
                   worker_id, '{}', p_now, org_slug, job_type, correlation_id, worker_id,
                   'leased', 'starting', fence, leased_hash) END AS newest_hash
          FROM taken
    ), recorded AS (
        INSERT INTO runtime_job_events (
            event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at, org_slug, job_type,
            correlation_id, worker_id, from_state, to_state, fence, prev_hash, hash)
        SELECT leased_ulid, job_ulid, event_seq + 1, 'job.leased', 'worker', worker_id, '{}'::jsonb, p_now,
               org_slug, job_type, correlation_id, worker_id, 'queued', 'leased', fence, event_head, leased_hash
          FROM chained
         UNION ALL
        SELECT started_ulid, job_ulid, event_seq + 2, 'job.started', 'worker', worker_id, '{}'::jsonb, p_now,
               org_slug, job_type, correlation_id, worker_id, 'leased', 'starting', fence, leased_hash,
               newest_hash
          FROM chained WHERE NOT p_acknowledge
    ), leased AS (
        INSERT INTO runtime_worker_leases (
            lease_ulid, job_ulid, worker_id, pool, state, fence, session, ttl_seconds, heartbeat_interval_seconds,
            acknowledge_within_seconds, leased_at, acknowledged_at, last_heartbeat_at, expires_at)
        SELECT lease_ulid, job_ulid, worker_id, pool,
               CASE WHEN p_acknowledge THEN 'granted' ELSE 'active' END, fence, session, lease_ttl_seconds,
               heartbeat_interval_seconds, acknowledge_within_seconds, p_now,
               CASE WHEN NOT p_acknowledge THEN p_now END, CASE WHEN NOT p_acknowledge THEN p_now END,
               p_now + interval '1 second'
                     * CASE WHEN p_acknowledge THEN acknowledge_within_seconds ELSE lease_ttl_seconds END
          FROM chained
        RETURNING runtime_worker_leases AS row
    ), updated AS (
        UPDATE runtime_jobs j
           SET state = CASE WHEN p_acknowledge THEN 'leased' ELSE 'starting' END, fence = chained.fence,
               phase_at = p_now, started_at = CASE WHEN NOT p_acknowledge THEN p_now END, updated_at = p_now,
               event_seq = j.event_seq + CASE WHEN p_acknowledge THEN 1 ELSE 2 END, event_head = chained.newest_hash
          FROM chained WHERE j.id = chained.id
        RETURNING chained.position, chained.lease_ulid, j AS row
    )
    SELECT leased.row, updated.row
      FROM updated JOIN leased ON (leased.row).lease_ulid = updated.lease_ulid ORDER BY updated.position;
END $$;

-- Gives jobs to slots of workers that they do not exclude: each job, in order, to the first slot that may have it.
-- Returns the jobs that have a slot, their slots, and the slots that are left. Arguments: see claim.
CREATE OR REPLACE FUNCTION match_slots(
    p_jobs bigint[], p_free integer[], p_names text[], p_max_jobs integer,
    OUT jobs bigint[], OUT slots integer[], OUT free integer[]
) LANGUAGE plpgsql AS $$
DECLARE
    item record;
    found_at integer;
BEGIN
    jobs := '{}';
    slots := '{}';
    free := p_free;
    FOR item IN
        SELECT j.id, j.excluded_workers FROM unnest(p_jobs) WITH ORDINALITY AS given(id, position)
          JOIN runtime_jobs j ON j.id = given.id ORDER BY given.position
    LOOP
        SELECT min(place) INTO found_at FROM unnest(free) WITH ORDINALITY AS s(slot, place)
         WHERE p_names[(slot - 1) / p_max_jobs + 1] <> ALL (item.excluded_workers::text[]);
        CONTINUE WHEN found_at IS NULL;
        jobs := jobs || item.id::bigint;
        slots := slots || free[found_at];
        free := free[:found_at - 1] || free[found_at + 1:];
    END LOOP;
END $$;

-- Claims up to p_max_jobs jobs for each of several workers with the same offer: the best queue, in it the oldest lane, in
-- it the oldest jobs. Workers get their first jobs before any gets a second one. As to shares and tiers, they are served
-- as one worker that claims as many jobs.
--
-- Waits only for the row of a single worker; of several, those whose row another transaction has are left out. The row
-- keeps claims of one worker apart: its capacity is exact. Queues and lanes are chosen without a lock (skipping a locked
-- one would serve a lower priority); slots and jobs are taken with SKIP LOCKED. A limit of N is N slot rows, so at most N jobs hold one.
--
-- p_workers: the workers, each once. p_sessions: the ULID of each worker's process, or empty. The newest process
-- replaces the others.
-- p_job_types, p_offers, p_isolation, p_isolations: the offer of the worker, sorted. It is stored if it changed.
-- p_acknowledge: leases are granted; else they are active at once, and their jobs starting.
-- p_lease_ids, p_event_ids: new ids, one lease and two events for each slot. The slots of the n-th worker are the n-th
-- p_max_jobs numbers from 1 on.
-- p_now: the timestamp of the leases; NULL is the time of the database after the last lock of a job.
--
-- Rows: ('leased', worker, lease, job) in the order of the claim. Without lease and job: ('replaced', worker): a newer
-- process has replaced this session; ('locked', worker): one of several, whose row another transaction has; 'again':
-- inconclusive for the workers that got nothing, because of locked rows, after 16 attempts, or because a blocked queue or lane was due and has been activated now.
CREATE OR REPLACE FUNCTION claim(
    p_workers bigint[], p_sessions text[], p_pool text, p_job_types text[], p_offers text[], p_isolation text,
    p_isolations text[], p_max_jobs integer, p_acknowledge boolean, p_lease_ids text[], p_event_ids text[],
    p_now timestamptz
) RETURNS TABLE (outcome text, claimant text, lease runtime_worker_leases, job runtime_jobs)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    max_attempts CONSTANT integer := 16;
    unlocked bigint[] := p_workers;
    worker workers_worker;
    place integer;
    -- By the place of a worker in p_workers: its name, and how many jobs it may get.
    names text[] := array_fill(NULL::text, ARRAY[cardinality(p_workers)]);
    numbers integer[] := array_fill(0, ARRAY[cardinality(p_workers)]);
    number integer;
    oldest_lease bigint;
    claimants integer := 0;  -- workers that may get a job
    served integer;  -- those that got one
    free integer[];  -- slots
    slots integer[] := '{}';  -- of `jobs`
    has_exclusions boolean;
    matched record;
    is_due boolean := false;
    profiles bigint[];
    shared boolean;
    the_queue record;
    the_lane record;
    held record;
    seen_queues bigint[] := '{}';
    closed_profiles bigint[] := '{}';
    pool_limits bigint[];
    type_limits bigint[] := '{}';
    types_limited boolean;
    the_limits bigint[];
    remaining integer;
    capacity integer;
    picked bigint[];
    picked_addresses text[];
    jobs bigint[] := '{}';
    jobs_without_address bigint[] := '{}';
    addresses text[] := '{}';
    lanes_seen bigint[] := '{}';
    lanes_found integer[] := '{}';
    lanes_last bigint[] := '{}';
    lanes_limits bigint[] := '{}';
    full_queues bigint[] := '{}';
    queue_limits bigint[] := '{}';
    missed boolean := false;
    exhausted boolean := true;
BEGIN
    -- 1. The workers: session, offer, capacity.
    IF cardinality(p_workers) > 1 THEN
        unlocked := ARRAY(SELECT w.id FROM workers_worker w WHERE w.id = ANY (p_workers)
                           ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED);
        RETURN QUERY SELECT 'locked'::text, w.worker_id::text, NULL::runtime_worker_leases, NULL::runtime_jobs
                       FROM workers_worker w WHERE w.id = ANY (p_workers) AND w.id <> ALL (unlocked);
    END IF;
    FOR worker IN SELECT * FROM workers_worker WHERE id = ANY (unlocked) ORDER BY id FOR NO KEY UPDATE LOOP
        place := array_position(p_workers, worker.id);
        IF p_sessions[place] <> '' AND p_sessions[place] < worker.session COLLATE "C" THEN
            RETURN QUERY
                SELECT 'replaced'::text, worker.worker_id::text, NULL::runtime_worker_leases, NULL::runtime_jobs;
            CONTINUE;
        END IF;
        IF (p_sessions[place] <> '' AND p_sessions[place] <> worker.session)
           OR worker.offered IS DISTINCT FROM p_offers::varchar[]
           OR worker.offered_types IS DISTINCT FROM p_job_types::varchar[]
           OR worker.offered_isolation IS DISTINCT FROM p_isolation THEN
            UPDATE workers_worker
               SET session = coalesce(nullif(p_sessions[place], ''), session),
                   offered = p_offers, offered_types = p_job_types, offered_isolation = p_isolation
             WHERE id = worker.id;
        END IF;
        CONTINUE WHEN worker.state <> 'active';
        -- Leases of replaced processes count until they end: else a worker could claim its capacity again with each
        -- session. An expired lease does not count, even before the scheduler ends it: nothing can renew it.
        SELECT worker.capacity - count(*) FILTER (WHERE o.expires_at > coalesce(p_now, clock_timestamp())), min(o.id)
          INTO number, oldest_lease
          FROM runtime_worker_leases o
         WHERE o.worker_id = worker.worker_id AND o.status = 'open' AND o.id >= worker.leases_from;
        -- One claim in 256 raises the bound of open leases, so that others do not read the versions of all that have
        -- ended. It stays below one that has expired: a heartbeat may just have renewed that. A later lease gets a higher
        -- id: only claims make leases of this worker, under the lock of its row.
        IF random() < 1.0 / 256 THEN
            UPDATE workers_worker
               SET leases_from = coalesce(oldest_lease, (SELECT last_value FROM runtime_worker_leases_id_seq))
             WHERE id = worker.id;
        END IF;
        number := least(p_max_jobs, number);
        CONTINUE WHEN number < 1;
        names[place] := worker.worker_id;
        numbers[place] := number;
        claimants := claimants + 1;
    END LOOP;
    IF claimants = 0 THEN
        RETURN;
    END IF;
    SELECT ARRAY(SELECT (of_worker.place - 1)::integer * p_max_jobs + turn
                   FROM unnest(numbers) WITH ORDINALITY AS of_worker(jobs, place),
                        generate_series(1, of_worker.jobs) AS turn ORDER BY turn, of_worker.place),
           ARRAY(SELECT p.id FROM lane_profiles p
                  WHERE p.job_type = ANY (p_job_types) AND p.least_isolation = ANY (p_isolations)
                    AND p.requirements <@ p_offers::varchar[]),
           ARRAY(SELECT m.id FROM lane_limits m WHERE m.scope = 'pool' AND m.org_slug = '' AND m.key = p_pool),
           EXISTS (SELECT FROM lane_limits m WHERE m.scope = 'job_type'),
           EXISTS (SELECT FROM lane_shares s WHERE s.pool = p_pool)
      INTO free, profiles, pool_limits, types_limited, shared;
    remaining := cardinality(free);
    -- 2. Jobs and slots. Absences are only collected here; finalize_claim reads them again and records them.
    <<queues>>
    FOR queue_attempt IN 1..max_attempts LOOP
        SELECT chosen.queue_id AS id, chosen.profile_id, k.priority INTO the_queue
          FROM (SELECT best.*
                  FROM unnest(profiles) AS matching(profile)
                 CROSS JOIN unnest(live_generations()) AS live(generation)
                 CROSS JOIN LATERAL (
                    SELECT q.queue_id, q.profile_id, q.tier, q.rank, q.head_id
                      FROM queue_heads q
                     WHERE q.pool = p_pool AND q.profile_id = matching.profile AND q.generation = live.generation
                       AND q.head_id IS NOT NULL AND q.blocked_by IS NULL AND q.queue_id <> ALL (seen_queues)
                     ORDER BY q.tier DESC, q.rank, q.head_id
                     LIMIT 1) best
                 WHERE matching.profile <> ALL (closed_profiles)
                 ORDER BY best.tier DESC, best.rank, best.head_id
                 LIMIT 1) chosen
          JOIN lane_queues k ON k.id = chosen.queue_id;
        exhausted := FOUND;
        EXIT WHEN NOT exhausted;
        seen_queues := seen_queues || the_queue.id::bigint;
        -- A transaction that attaches a limit to this queue holds lock 5 alone: it sees every job that runs without it.
        IF NOT pg_try_advisory_xact_lock_shared(5, (the_queue.id & 2147483647)::integer) THEN
            missed := true;
            CONTINUE;
        END IF;
        IF types_limited THEN
            SELECT coalesce(array_agg(m.id::bigint), '{}') INTO type_limits
              FROM lane_profiles p JOIN lane_limits m ON m.scope = 'job_type' AND m.org_slug = '' AND m.key = p.job_type
             WHERE p.id = the_queue.profile_id;
        END IF;
        <<lanes>>
        FOR lane_attempt IN 1..max_attempts LOOP
            -- The limits of the queue are read after lock 5.
            SELECT l.id, l.limits::bigint[] AS limits, chosen.scan_from, l.source_address,
                   (SELECT q.limits::bigint[] FROM lane_queues q WHERE q.id = the_queue.id) AS queue_limits
              INTO the_lane
              FROM (SELECT best.*
                      FROM unnest(live_generations()) AS live(generation)
                     CROSS JOIN LATERAL (
                        SELECT h.lane_id, h.scan_from, h.head_at, h.head_id
                          FROM lane_heads h
                         WHERE h.queue_id = the_queue.id AND h.generation = live.generation
                           AND h.head_id IS NOT NULL AND h.blocked_by IS NULL AND h.lane_id <> ALL (lanes_seen)
                         ORDER BY h.head_at, h.head_id
                         LIMIT 1) best
                     ORDER BY best.head_at, best.head_id
                     LIMIT 1) chosen
              JOIN lanes l ON l.id = chosen.lane_id;
            EXIT WHEN NOT FOUND;
            lanes_seen := lanes_seen || the_lane.id::bigint;
            lanes_found := lanes_found || 0;
            lanes_last := lanes_last || NULL::bigint;
            lanes_limits := lanes_limits || NULL::bigint;
            capacity := remaining;
            the_limits := pool_limits || type_limits || the_lane.queue_limits || the_lane.limits;
            IF the_limits <> '{}' THEN
                held := lane_capacity(the_limits, remaining, the_queue.priority);
                capacity := held.capacity;
                missed := missed OR held.retry;
                IF held.full_limit = ANY (pool_limits) THEN
                    exhausted := false;
                    EXIT queues;
                ELSIF held.full_limit = ANY (type_limits) THEN
                    closed_profiles := closed_profiles || ARRAY(
                        SELECT other.id::bigint FROM lane_profiles p JOIN lane_profiles other USING (job_type)
                         WHERE p.id = the_queue.profile_id);
                    EXIT lanes;
                ELSIF held.full_limit = ANY (the_lane.queue_limits) THEN
                    full_queues := full_queues || the_queue.id::bigint;
                    queue_limits := queue_limits || held.full_limit;
                    EXIT lanes;
                END IF;
                lanes_limits[cardinality(lanes_seen)] := held.full_limit;
            END IF;
            CONTINUE WHEN capacity = 0;
            SELECT array_agg(next.id), array_agg(DISTINCT host(next.source_address)),
                   bool_or(next.excluded_workers <> '{}')
              INTO picked, picked_addresses, has_exclusions
              FROM (SELECT j.id, j.source_address, j.excluded_workers FROM runtime_jobs j
                     WHERE j.lane_id = the_lane.id AND j.state = 'queued' AND j.id >= the_lane.scan_from
                       AND NOT j.excluded_workers @> array_remove(names, NULL)::varchar[]
                     ORDER BY j.id LIMIT capacity FOR NO KEY UPDATE SKIP LOCKED) next;
            CONTINUE WHEN picked IS NULL;
            IF has_exclusions AND claimants > 1 THEN
                matched := match_slots(picked, free, names, p_max_jobs);
                missed := missed OR cardinality(matched.jobs) < cardinality(picked);
                picked := matched.jobs;
                CONTINUE WHEN picked = '{}';
                slots := slots || matched.slots;
                free := matched.free;
            ELSE
                slots := slots || free[:cardinality(picked)];
                free := free[cardinality(picked) + 1:];
            END IF;
            IF the_limits <> '{}' THEN
                PERFORM assign_slots(picked, held.slot_limits, held.slot_numbers, held.counting, held.rates);
            END IF;
            IF the_lane.source_address = '' THEN
                jobs_without_address := jobs_without_address || picked;
                addresses := addresses || array_remove(picked_addresses, NULL);
            END IF;
            jobs := jobs || picked;
            lanes_found[cardinality(lanes_seen)] := cardinality(picked);
            lanes_last[cardinality(lanes_seen)] := picked[cardinality(picked)];
            remaining := remaining - cardinality(picked);
            EXIT queues WHEN remaining = 0;
        END LOOP lanes;
    END LOOP queues;
    IF addresses <> '{}' THEN
        PERFORM count_addresses(jobs_without_address, addresses);
    END IF;
    -- 3. Leases, events and the jobs themselves. The clock is read after the last lock of a job.
    IF jobs <> '{}' THEN
        RETURN QUERY SELECT 'leased'::text, (l.lease).worker_id::text, l.lease, l.job
                       FROM lease_jobs(jobs, slots, names, p_sessions, p_max_jobs, p_acknowledge, p_lease_ids,
                                       p_event_ids, p_now) l;
    END IF;
    served := CASE claimants WHEN 1 THEN least(cardinality(jobs), 1)
                   ELSE (SELECT count(DISTINCT (slot - 1) / p_max_jobs) FROM unnest(slots) AS taken(slot)) END;
    IF served < claimants THEN
        is_due := EXISTS (SELECT FROM queue_heads q WHERE q.eligible_at <= clock_timestamp())
            OR EXISTS (SELECT FROM lane_heads l WHERE l.eligible_at <= clock_timestamp());
        IF is_due OR missed OR exhausted THEN
            RETURN QUERY SELECT 'again'::text, NULL::text, NULL::runtime_worker_leases, NULL::runtime_jobs;
        END IF;
        IF is_due AND jobs = '{}' THEN
            PERFORM activate_due_queues(200);
            RETURN;
        END IF;
    END IF;
    -- 4. Lanes, shares and queues, which many claims share: last.
    IF lanes_seen <> '{}' OR full_queues <> '{}' THEN
        PERFORM finalize_claim(
            lanes_seen, lanes_found, lanes_last, lanes_limits, full_queues, queue_limits, shared);
    END IF;
END $$;
