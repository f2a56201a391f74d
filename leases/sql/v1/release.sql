-- Every operation but a claim: release the slots of jobs that are no longer leased, put waiting jobs into their lanes, and
-- activate what that unblocks (release_and_enqueue_v1). Advisory locks and their order: leases/advisory_locks.py.

-- Holds lock 7 of these lanes, shared, until commit, and checks that each lane still exists: prune_idle_lanes_v1 may have
-- deleted a lane since it was looked up. Raises 40001 for a missing lane: the repeated transaction creates a new one.
CREATE OR REPLACE FUNCTION require_lanes_v1(p_lanes bigint[]) RETURNS void
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

-- Raises the shares of organizations that return to their pool to the lowest share that is served there. Unused service
-- earns no claim. The first three turns come before that (lead), so that an organization with few jobs does not wait for
-- one that always has some. An organization that returns again has used up its lead, or gets no more than the rest of it.
CREATE OR REPLACE FUNCTION raise_share_floor_v1(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
    floor_served float;
BEGIN
    FOR item IN
        SELECT DISTINCT s.id, s.pool FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.id = ANY (p_queues) AND NOT EXISTS (
            SELECT FROM lane_queues other WHERE other.pool = s.pool AND other.org_slug = s.org_slug
               AND other.head_id IS NOT NULL AND other.blocked_by IS NULL)
         ORDER BY s.id
    LOOP
        SELECT s.served INTO floor_served FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.pool = item.pool AND q.head_id IS NOT NULL AND q.blocked_by IS NULL ORDER BY q.rank LIMIT 1;
        UPDATE lane_shares SET served = floor_served, lead = 3 WHERE id = item.id AND served < floor_served;
    END LOOP;
END $$;

-- Activates queues whose lanes have jobs to serve (again), and notifies their pools.
-- p_limits: limits that no longer block. p_due: also activate the queues whose time has come.
CREATE OR REPLACE FUNCTION activate_queues_v1(p_queues bigint[], p_limits bigint[], p_due boolean) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
    freed bigint[] := '{}';
    notified text[] := '{}';
    pool_name text;
BEGIN
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM pg_advisory_xact_lock_shared(6, (item.id & 2147483647)::integer);
    END LOOP;
    PERFORM raise_share_floor_v1(p_queues);
    IF p_limits <> '{}' OR p_due THEN
        -- One statement locks the queues of both kinds in the order of keys; two statements met deadlocks.
        SELECT coalesce(array_agg(id::bigint) FILTER (WHERE is_freed), '{}') INTO freed FROM (
            SELECT id, blocked_by = ANY (p_limits) OR (p_due AND eligible_at <= clock_timestamp()) AS is_freed
              FROM lane_queues
             WHERE blocked_by = ANY (p_limits) OR (p_due AND eligible_at <= clock_timestamp()) OR id = ANY (p_queues)
             ORDER BY id FOR NO KEY UPDATE) q;
        UPDATE lane_queues SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (freed);
        SELECT coalesce(array_agg(DISTINCT pool), '{}') INTO notified
          FROM lane_queues WHERE id = ANY (freed) AND head_id IS NOT NULL;
    END IF;
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE lane_queues q
           SET head_id = head.head_id, head_at = head.head_at,
               rank = queue_rank_v1(q.pool, q.org_slug, head.head_at),
               tier = queue_tier_v1(q.pool, q.priority, head.head_at, q.served_at)
          FROM (SELECT head_id, head_at FROM lanes
                 WHERE queue_id = item.id AND head_id IS NOT NULL AND blocked_by IS NULL
                 ORDER BY head_at, head_id LIMIT 1) head
         WHERE q.id = item.id AND (q.head_id IS NULL OR q.head_id > head.head_id)
        RETURNING CASE WHEN q.blocked_by IS NULL THEN q.pool END INTO pool_name;
        IF NOT FOUND THEN
            -- The queue has an older head. If that was claimed, or excludes workers, nothing has announced the others.
            SELECT q.pool INTO pool_name FROM lane_queues q JOIN runtime_jobs head ON head.id = q.head_id
             WHERE q.id = item.id AND q.blocked_by IS NULL AND (head.state <> 'queued' OR head.excluded_workers <> '{}');
        END IF;
        IF pool_name IS NOT NULL THEN
            notified := notified || pool_name;
        END IF;
    END LOOP;
    -- Never for a job that joins others in a lane: NOTIFY takes a lock of the whole cluster at commit.
    PERFORM pg_notify('lanes', pool) FROM (SELECT DISTINCT unnest(notified) AS pool) w;
END $$;

-- Releases the slots of jobs that are no longer leased (p_freed), and puts jobs into their lanes (p_jobs, p_lanes and
-- p_created_ats run parallel). The last statement of an operation. p_raised: limits that have more capacity now.
-- All of it ends absences that finalize_claim_v1 records, so the locks of those facts are held, shared, until commit.
CREATE OR REPLACE FUNCTION release_and_enqueue_v1(
    p_freed bigint[], p_jobs bigint[], p_lanes bigint[], p_created_ats timestamptz[], p_raised bigint[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    item record;
    freed bigint[];
    lowered bigint[];
    unblocked bigint[] := '{}';
    changed bigint[] := '{}';
    touched bigint[];
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
        PERFORM reassign_overflow_slots_v1(item.id);
    END LOOP;
    FOR item IN SELECT DISTINCT id FROM unnest(freed || p_raised) AS id ORDER BY 1 LOOP
        UPDATE lane_limits SET waiting = false WHERE id = item.id AND waiting;
        IF FOUND THEN
            unblocked := unblocked || item.id;
        END IF;
    END LOOP;
    FOR item IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, (item.id & 2147483647)::integer);
        PERFORM FROM lanes WHERE id = item.id;
        IF NOT FOUND THEN  -- as in require_lanes_v1
            RAISE EXCEPTION 'Lane % was pruned.', item.id USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    IF unblocked <> '{}' THEN
        SELECT coalesce(array_agg(id::bigint), '{}') INTO changed FROM lanes WHERE blocked_by = ANY (unblocked);
        PERFORM FROM lanes WHERE id = ANY (changed || p_lanes) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE blocked_by = ANY (unblocked);
    END IF;
    -- Most jobs enter a lane that has older ones: then no row is written and no queue is read.
    FOR item IN
        SELECT lane AS id, min(job) AS job, min(created_at) AS created_at
          FROM unnest(p_lanes, p_jobs, p_created_ats) AS entered(lane, job, created_at) GROUP BY lane ORDER BY lane
    LOOP
        UPDATE lanes l
           SET scan_from = least(l.scan_from, item.job), head_id = least(l.head_id, item.job),
               head_at = least(l.head_at, item.created_at), idle_since = NULL
         WHERE l.id = item.id AND (l.head_id IS NULL OR l.head_id > item.job OR l.scan_from > item.job);
        IF FOUND THEN
            changed := changed || item.id;
        ELSE
            -- The job waits behind a head that was claimed or that excludes workers, or is that head, returned: the lane
            -- is among those to serve, but no worker was notified of it.
            PERFORM pg_notify('lanes', q.pool)
               FROM lanes l JOIN lane_queues q ON q.id = l.queue_id JOIN runtime_jobs head ON head.id = l.head_id
              WHERE l.id = item.id AND l.blocked_by IS NULL AND q.blocked_by IS NULL
                AND (head.state <> 'queued' OR head.id = item.job OR head.excluded_workers <> '{}');
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT queue_id::bigint), '{}') INTO touched
      FROM lanes WHERE id = ANY (changed) AND head_id IS NOT NULL AND blocked_by IS NULL;
    IF touched <> '{}' OR unblocked <> '{}' THEN
        PERFORM activate_queues_v1(touched, unblocked, false);
    END IF;
END $$;
