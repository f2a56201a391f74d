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
