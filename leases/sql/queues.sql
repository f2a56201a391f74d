-- Lanes and queues: their order, and everything but a claim that changes them. Jobs enter lanes, slots are released, and
-- what that unblocks is activated. Advisory locks and the order of all locks: leases/advisory_locks.py. Lock keys have 32
-- bits, ids 64: `id & 2147483647`.

-- Returns the place of a queue among those of its tier: the age of its head or, in a pool that shares, the service that
-- its organization has had. PL/pgSQL, because PostgreSQL parses and plans a function in SQL at each call.
CREATE OR REPLACE FUNCTION queue_rank(p_pool text, p_org_slug text, p_head_at timestamptz) RETURNS float
LANGUAGE plpgsql STABLE AS $$
DECLARE
    service float;
BEGIN
    SELECT served - lead INTO service FROM lane_shares WHERE pool = p_pool AND org_slug = p_org_slug;
    RETURN coalesce(service, extract(epoch FROM p_head_at));
END $$;

-- Returns the priority and what aging adds to it, in steps of ten points, so that no job starves. Aging never reaches
-- the emergency lane. Nothing is added without the setting, or in a pool with `aging` off.
-- Where organizations take turns, the wait counts from the last turn (p_served_at): counted from the age of its head, a
-- large backlog would be served before all later jobs.
CREATE OR REPLACE FUNCTION queue_tier(
    p_pool text, p_priority integer, p_head_at timestamptz, p_served_at timestamptz
) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    aged float := floor(
        greatest(0, extract(epoch FROM clock_timestamp() - greatest(p_head_at, p_served_at)))
        / nullif(10 * nullif(current_setting('orchestrator.aging_seconds', true), '')::float, 0));
BEGIN
    IF p_priority >= 399 OR aged < 1 OR aged IS NULL THEN
        RETURN p_priority;
    ELSIF EXISTS (SELECT FROM workers_pool WHERE slug = p_pool AND NOT aging) THEN
        RETURN p_priority;
    END IF;
    RETURN least(399, p_priority + 10 * aged)::integer;
END $$;

-- Raises the shares of organizations that return to their pool to the lowest share that is served there. Unused service
-- earns no claim. The first three turns come before that (lead), so that an organization with few jobs does not wait for
-- one that always has some. An organization that returns again has used up its lead, or gets no more than the rest of it.
CREATE OR REPLACE FUNCTION raise_share_floor(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
    floor_served float;
BEGIN
    FOR item IN
        SELECT DISTINCT s.id, s.pool FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.id = ANY (p_queues) AND NOT EXISTS (
            SELECT FROM lane_queues other
             CROSS JOIN LATERAL (
                SELECT h.head_id, h.blocked_by FROM queue_heads h
                 WHERE h.queue_id = other.id ORDER BY h.version DESC LIMIT 1) head
             WHERE other.pool = s.pool AND other.org_slug = s.org_slug
               AND head.head_id IS NOT NULL AND head.blocked_by IS NULL)
         ORDER BY s.id
    LOOP
        SELECT s.served INTO floor_served
          FROM (SELECT best.* FROM unnest(live_generations()) AS live(generation)
                 CROSS JOIN LATERAL (
                    SELECT q.queue_id, q.rank FROM queue_heads q
                     WHERE q.pool = item.pool AND q.generation = live.generation
                       AND q.head_id IS NOT NULL AND q.blocked_by IS NULL
                     ORDER BY q.rank LIMIT 1) best
                 ORDER BY best.rank LIMIT 1) least_served
          JOIN lane_queues k ON k.id = least_served.queue_id JOIN lane_shares s USING (pool, org_slug);
        UPDATE lane_shares SET served = floor_served, lead = 3 WHERE id = item.id AND served < floor_served;
    END LOOP;
END $$;

-- Charges organizations for the jobs that they got, in a pool that shares: jobs divided by weight. Their queues then come
-- later, and their wait begins again. Without shares nothing is done.
-- p_lanes and p_found run parallel. p_queues: queues that the caller writes next; all are locked here, in order.
CREATE OR REPLACE FUNCTION charge_shares(p_lanes bigint[], p_found integer[], p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
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
    PERFORM lock_queue_heads(p_queues
        || ARRAY(SELECT queue_id::bigint FROM lanes WHERE id = ANY (p_lanes))
        || ARRAY(SELECT q.id::bigint FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
                  WHERE s.id = ANY (charged)));
    SELECT array_agg(l.queue_id) INTO served_queues
      FROM unnest(p_lanes, p_found) AS visited(lane, jobs) JOIN lanes l ON l.id = visited.lane WHERE visited.jobs > 0;
    FOR item IN
        SELECT k.id, k.priority, s.served - s.lead AS service, k.id = ANY (served_queues) AS is_served
          FROM lane_shares s JOIN lane_queues k USING (pool, org_slug) WHERE s.id = ANY (charged) ORDER BY k.id
    LOOP
        UPDATE queue_heads
           SET version = nextval('lane_versions'), rank = item.service,
               served_at = CASE WHEN item.is_served THEN clock_timestamp() ELSE served_at END,
               tier = CASE WHEN item.is_served THEN item.priority ELSE tier END
         WHERE queue_id = item.id AND head_id IS NOT NULL
           AND version >= (
               SELECT n.version FROM queue_heads n WHERE n.queue_id = item.id ORDER BY n.version DESC LIMIT 1);
    END LOOP;
END $$;

-- Activates queues whose lanes have jobs to serve (again). Returns their pools, for callers to announce.
-- NOTIFY takes a lock of the whole cluster until the commit is flushed. So an operation announces the pools afterwards, by
-- a transaction of its own (docs/adr/0059). No pool is returned for a job that joins others in a lane.
-- p_limits: limits that no longer block. p_due: those of p_queues that were blocked until a time.
-- The caller has a transaction id: see heads.sql.
CREATE OR REPLACE FUNCTION activate_queues(p_queues bigint[], p_limits bigint[], p_due bigint[]) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    seen record;
    pools text[] := '{}';
    pool_name text;
BEGIN
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM pg_advisory_xact_lock_shared(6, (item.id & 2147483647)::integer);
    END LOOP;
    PERFORM raise_share_floor(p_queues);
    IF p_limits <> '{}' OR p_due <> '{}' THEN
        -- One loop locks the queues of both kinds in the order of keys; two lists met deadlocks.
        FOR item IN
            SELECT DISTINCT id FROM unnest(
                p_queues || ARRAY(SELECT queue_id::bigint FROM queue_heads WHERE blocked_by = ANY (p_limits))) AS id
             ORDER BY id
        LOOP
            SELECT version, pool, head_id, blocked_by, eligible_at INTO seen
              FROM queue_heads WHERE queue_id = item.id ORDER BY version DESC LIMIT 1 FOR NO KEY UPDATE;
            IF seen.blocked_by = ANY (p_limits) OR (item.id = ANY (p_due) AND seen.eligible_at <= clock_timestamp()) THEN
                UPDATE queue_heads
                   SET version = nextval('lane_versions'), generation = newest_generation(),
                       blocked_by = NULL, eligible_at = NULL
                 WHERE queue_id = item.id AND version = seen.version;
                IF seen.head_id IS NOT NULL THEN
                    pools := pools || seen.pool::text;
                END IF;
            END IF;
        END LOOP;
    END IF;
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE queue_heads q
           SET version = nextval('lane_versions'), generation = newest_generation(),
               head_id = oldest.head_id, head_at = oldest.head_at,
               rank = queue_rank(k.pool, k.org_slug, oldest.head_at),
               tier = queue_tier(k.pool, k.priority, oldest.head_at, q.served_at)
          FROM lane_queues k CROSS JOIN oldest_head(item.id) AS oldest
         WHERE k.id = item.id AND q.queue_id = item.id
           AND q.version >= (
               SELECT n.version FROM queue_heads n WHERE n.queue_id = item.id ORDER BY n.version DESC LIMIT 1)
           AND (q.head_id IS NULL OR q.head_id > oldest.head_id) AND oldest.head_id IS NOT NULL
        RETURNING CASE WHEN q.blocked_by IS NULL THEN q.pool END INTO pool_name;
        IF NOT FOUND THEN
            -- The queue has an older head. If that was claimed, or excludes workers, nothing has announced the others.
            SELECT q.pool INTO pool_name
              FROM (SELECT h.pool, h.blocked_by, h.head_id FROM queue_heads h
                     WHERE h.queue_id = item.id ORDER BY h.version DESC LIMIT 1) q
              JOIN runtime_jobs head ON head.id = q.head_id
             WHERE q.blocked_by IS NULL AND (head.state <> 'queued' OR head.excluded_workers <> '{}');
        END IF;
        IF pool_name IS NOT NULL THEN
            pools := pools || pool_name;
        END IF;
    END LOOP;
    RETURN pools;
END $$;

-- Holds lock 7 of these lanes, shared, until commit, and checks that each lane still exists: prune_idle_lanes may have
-- deleted a lane since it was looked up. Raises 40001 for a missing lane: the repeated transaction creates a new one.
CREATE OR REPLACE FUNCTION require_lanes(p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
BEGIN
    FOR item IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, (item.id & 2147483647)::integer);
        PERFORM FROM lanes WHERE id = item.id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'Lane % was pruned.', item.id USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
END $$;

-- Puts waiting jobs into their lanes: the first three arrays run parallel. Activates what that makes servable.
-- Ends absences that finalize_claim records, so the locks of those facts are held, shared, until commit.
-- p_queues, p_limits: further queues to activate, and limits that no longer block. Returns the pools to announce.
CREATE OR REPLACE FUNCTION enter_lanes(
    p_jobs bigint[], p_lanes bigint[], p_created_ats timestamptz[], p_queues bigint[], p_limits bigint[]
) RETURNS text[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    head record;
    touched bigint[] := p_queues;
    pools text[] := '{}';
    pool_name text;
BEGIN
    -- Lock all lanes before the first row of one: the order of advisory_locks.py.
    FOR item IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, (item.id & 2147483647)::integer);
    END LOOP;
    -- Most jobs enter a lane that has older ones: then no row is written and no queue is read.
    FOR item IN
        SELECT lane AS id, min(job) AS job, min(created_at) AS created_at
          FROM unnest(p_lanes, p_jobs, p_created_ats) AS entered(lane, job, created_at) GROUP BY lane ORDER BY lane
    LOOP
        -- Under lock 7 nobody else moves the scan position, or records that the lane is empty.
        SELECT l.version, l.queue_id::bigint, l.head_id, l.scan_from, l.blocked_by INTO head
          FROM lane_heads l WHERE l.lane_id = item.id ORDER BY l.version DESC LIMIT 1;
        IF NOT FOUND THEN  -- as in require_lanes
            RAISE EXCEPTION 'Lane % was pruned.', item.id USING ERRCODE = 'serialization_failure';
        END IF;
        IF head.head_id IS NULL OR head.head_id > item.job OR head.scan_from > item.job THEN
            UPDATE lane_heads l
               SET version = nextval('lane_versions'), generation = newest_generation(),
                   scan_from = least(l.scan_from, item.job), head_id = least(l.head_id, item.job),
                   head_at = least(l.head_at, item.created_at), idle_since = NULL
             WHERE l.lane_id = item.id AND l.version >= head.version
            RETURNING l.blocked_by INTO head.blocked_by;
            IF head.blocked_by IS NULL THEN
                touched := touched || head.queue_id;
            END IF;
            CONTINUE;
        END IF;
        -- The job waits behind a head that was claimed or that excludes workers, or is that head, returned: the lane
        -- is among those to serve, but no worker was notified of it.
        SELECT q.pool INTO pool_name
          FROM (SELECT h.pool, h.blocked_by FROM queue_heads h
                 WHERE h.queue_id = head.queue_id ORDER BY h.version DESC LIMIT 1) q
          JOIN runtime_jobs oldest ON oldest.id = head.head_id
         WHERE head.blocked_by IS NULL AND q.blocked_by IS NULL
           AND (oldest.state <> 'queued' OR oldest.id = item.job OR oldest.excluded_workers <> '{}');
        IF FOUND THEN
            pools := pools || pool_name;
        END IF;
    END LOOP;
    IF touched <> '{}' OR p_limits <> '{}' THEN
        pools := pools || activate_queues(touched, p_limits, '{}');
    END IF;
    RETURN pools;
END $$;

-- Releases the slots of jobs that are no longer leased (p_freed), and then does what enter_lanes does. Returns the
-- pools to announce. p_raised: limits that have more capacity now.
CREATE OR REPLACE FUNCTION release_and_enqueue(
    p_freed bigint[], p_jobs bigint[], p_lanes bigint[], p_created_ats timestamptz[], p_raised bigint[]
) RETURNS text[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    freed bigint[];
    lowered bigint[];
    unblocked bigint[] := '{}';
    touched bigint[] := '{}';
BEGIN
    FOR item IN SELECT DISTINCT limit_id AS id FROM lane_limit_slots WHERE job_id = ANY (p_freed) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(8, (item.id & 2147483647)::integer);
    END LOOP;
    -- A limit that was lowered below the jobs that run: a job that ends hands its slot to one whose slot is retired.
    SELECT coalesce(array_agg(id::bigint ORDER BY id), '{}') INTO lowered FROM (
        SELECT id FROM lane_limits l
         WHERE id IN (SELECT limit_id FROM lane_limit_slots WHERE job_id = ANY (p_freed))
           AND EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = l.id AND s.retired)
         ORDER BY id FOR NO KEY UPDATE) l;
    DELETE FROM lane_limit_slots WHERE job_id = ANY (p_freed) AND retired;
    WITH given AS (UPDATE lane_limit_slots SET job_id = NULL WHERE job_id = ANY (p_freed) RETURNING limit_id)
    SELECT coalesce(array_agg(DISTINCT limit_id::bigint), '{}') INTO freed FROM given;
    FOR item IN SELECT id FROM unnest(lowered) AS id LOOP
        PERFORM reassign_overflow_slots(item.id);
    END LOOP;
    FOR item IN SELECT DISTINCT id FROM unnest(freed || p_raised) AS id ORDER BY 1 LOOP
        UPDATE lane_limits SET waiting = false WHERE id = item.id AND waiting;
        IF FOUND THEN
            unblocked := unblocked || item.id;
        END IF;
    END LOOP;
    IF unblocked <> '{}' THEN
        -- The locks of enter_lanes come before those of the rows.
        PERFORM require_lanes(p_lanes);
        PERFORM lock_lane_heads(
            p_lanes || ARRAY(SELECT lane_id::bigint FROM lane_heads WHERE blocked_by = ANY (unblocked)));
        WITH activated AS (
            UPDATE lane_heads
               SET version = nextval('lane_versions'), generation = newest_generation(),
                   blocked_by = NULL, eligible_at = NULL
             WHERE blocked_by = ANY (unblocked)
            RETURNING queue_id, head_id)
        SELECT coalesce(array_agg(DISTINCT queue_id::bigint), '{}') INTO touched
          FROM activated WHERE head_id IS NOT NULL;
    END IF;
    RETURN enter_lanes(p_jobs, p_lanes, p_created_ats, touched, unblocked);
END $$;
