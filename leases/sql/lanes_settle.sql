-- The last statement of a claim: write down what it found to be over. Arrays run parallel.
--
-- A fact that says "nothing there" (lane empty, limit full, queue with nothing to serve) is written only by who gets
-- its guard without waiting and then looks afresh; whoever makes such a fact false holds the same guard shared until
-- commit (`lanes_end`). Who does not get it writes nothing: the lane stays in the choice, which is never wrong.
-- Guards: 4 queues of an organization, 5 limits of a queue, 8 limit full, 7 lane empty, 6 queue without anything to
-- serve, 10 jobs of a source address, 11 jobs of a concurrency key, 12 submit quota; 9 only keeps two from the same work.
-- Order of locks, here and in `lanes_end`: guard 12, submit quota, guard 8, limits, guard 7, lanes, guard 6, shares, queues.
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
