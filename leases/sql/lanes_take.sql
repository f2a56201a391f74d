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
