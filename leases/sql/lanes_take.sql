-- Take up to p_most jobs for one worker: the best queue, in it the oldest lane, in it the oldest jobs.
--
-- Promises: waits for nobody. Queues and lanes are chosen without a lock (to skip a locked one would serve a lower
-- priority), slots and jobs are taken with SKIP LOCKED. A limit is N slot rows, so no more than N can hold one.
-- Says nothing final about what it did not find: it reports the lanes and limits that it saw, and `lanes_settle`, the
-- last statement of the transaction, looks again.
--
-- Rows: ('job', runtime_jobs.id, lane), ('lane', lane, queue), ('lane_full', lane, limit), ('queue_full', queue, limit).
CREATE OR REPLACE FUNCTION lanes_take(
    p_pool text, p_profiles integer[], p_worker text, p_most integer, p_looks integer DEFAULT 16
) RETURNS TABLE (what text, id bigint, of integer)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    the_queue record;
    the_lane record;
    seen_queues integer[] := '{}';
    seen_lanes integer[] := '{}';
    the_limit integer;
    places integer[];
    held_limits integer[];
    held_places integer[];
    room integer;
    start integer;
    jobs bigint[];
    wanted integer := p_most;
BEGIN
    FOR look IN 1..p_looks LOOP
        SELECT best.* INTO the_queue
          FROM unnest(p_profiles) AS fitting(profile)
         CROSS JOIN LATERAL (
            SELECT q.id, q.limits, q.tier, q.rank
              FROM lane_queues q
             WHERE q.pool = p_pool AND q.profile_id = fitting.profile
               AND q.head_id IS NOT NULL AND q.blocked_by IS NULL AND q.id <> ALL (seen_queues)
             ORDER BY q.tier DESC, q.rank, q.id
             LIMIT 1) best
         ORDER BY best.tier DESC, best.rank, best.id
         LIMIT 1;
        EXIT WHEN NOT FOUND;
        seen_queues := seen_queues || the_queue.id;
        -- Who puts a limit on this queue holds guard 5 alone, and then knows of every job that runs without it.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared(5, the_queue.id);
        SELECT q.limits INTO the_queue.limits FROM lane_queues q WHERE q.id = the_queue.id;
        <<lanes>>
        FOR lane_look IN 1..p_looks LOOP
            SELECT l.id, l.limits, l.scan_from INTO the_lane
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
            FOREACH the_limit IN ARRAY the_queue.limits || the_lane.limits LOOP
                -- From a moving start: those that come together do not all try the same rows first.
                SELECT floor(random() * max_active) INTO start FROM lane_limits WHERE lane_limits.id = the_limit;
                SELECT array_agg(n) INTO places FROM (
                    SELECT n FROM lane_limit_slots
                     WHERE limit_id = the_limit AND job_id IS NULL AND NOT retired AND n >= start
                     ORDER BY n LIMIT room FOR NO KEY UPDATE SKIP LOCKED) free;
                IF places IS NULL THEN
                    SELECT array_agg(n) INTO places FROM (
                        SELECT n FROM lane_limit_slots
                         WHERE limit_id = the_limit AND job_id IS NULL AND NOT retired AND n < start
                         ORDER BY n LIMIT room FOR NO KEY UPDATE SKIP LOCKED) free;
                END IF;
                IF places IS NULL THEN
                    room := 0;
                    IF the_limit = ANY (the_queue.limits) THEN
                        RETURN QUERY SELECT 'queue_full', the_queue.id::bigint, the_limit;
                        EXIT lanes;
                    END IF;
                    RETURN QUERY SELECT 'lane_full', the_lane.id::bigint, the_limit;
                    EXIT;
                END IF;
                room := least(room, cardinality(places));
                held_limits := held_limits || array_fill(the_limit, ARRAY[cardinality(places)]);
                held_places := held_places || places;
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
            UPDATE lane_limit_slots s SET job_id = jobs[given.place]
              FROM (SELECT h.l, h.n, row_number() OVER (PARTITION BY h.l ORDER BY h.n) AS place
                      FROM unnest(held_limits, held_places) AS h(l, n)) given
             WHERE s.limit_id = given.l AND s.n = given.n AND given.place <= cardinality(jobs);
            RETURN QUERY SELECT 'job', job, the_lane.id FROM unnest(jobs) AS job;
            wanted := wanted - cardinality(jobs);
            IF wanted = 0 THEN
                RETURN;
            END IF;
        END LOOP lanes;
    END LOOP;
END $$;
