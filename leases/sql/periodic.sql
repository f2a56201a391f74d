-- Periodic tasks of the scheduler process: activate what is due, apply aging, and advance lanes that claims left behind.

-- Activates lanes and queues that were blocked until a time that has come. Returns how many.
CREATE OR REPLACE FUNCTION activate_due_queues(p_max_rows integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    due_lanes bigint[];
    due_queues bigint[];
BEGIN
    SELECT coalesce(array_agg(id::bigint), '{}') INTO due_lanes FROM (
        SELECT id FROM lanes WHERE id IN (
            SELECT id FROM lanes WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_max_rows)
         ORDER BY id FOR NO KEY UPDATE) l;
    UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (due_lanes) AND eligible_at <= clock_timestamp();
    SELECT coalesce(array_agg(DISTINCT id::bigint), '{}') INTO due_queues FROM (
        SELECT queue_id AS id FROM lanes WHERE id = ANY (due_lanes) AND head_id IS NOT NULL
         UNION (SELECT id FROM lane_queues WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_max_rows)) q;
    PERFORM pg_notify('lanes', pool)
       FROM (SELECT DISTINCT unnest(activate_queues(due_queues, '{}', due_queues)) AS pool) activated;
    RETURN cardinality(due_lanes) + cardinality(due_queues);
END $$;

-- Raises the tiers of queues that have waited, and resets those of pools whose aging was switched off. Returns how many.
-- A queue that another transaction has locked is left to the next round.
CREATE OR REPLACE FUNCTION apply_aging(p_max_rows integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    changed integer;
BEGIN
    UPDATE lane_queues q SET tier = queue_tier(q.pool, q.priority, q.head_at, q.served_at)
      FROM (SELECT id FROM lane_queues
             WHERE head_id IS NOT NULL AND blocked_by IS NULL
               AND tier <> queue_tier(pool, priority, head_at, served_at)
             ORDER BY id LIMIT p_max_rows FOR NO KEY UPDATE SKIP LOCKED) old
     WHERE q.id = old.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;

-- Returns lanes whose head is no longer queued.
CREATE OR REPLACE FUNCTION stale_lanes(p_max_rows integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.id::bigint FROM lanes l JOIN runtime_jobs j ON j.id = l.head_id
                  WHERE j.state <> 'queued' ORDER BY l.id LIMIT p_max_rows;
END $$;

-- Advances the head and the scan position of one lane; one lane a transaction. Claims only try lock 7, so under a steady
-- stream of submits a scan position may stay behind and its scans grow long. Here the lock is waited for.
CREATE OR REPLACE FUNCTION advance_lane_cursor(p_lane_id bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    position_id bigint;
    next_id bigint;
    next_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7, (p_lane_id & 2147483647)::integer);
    SELECT scan_from INTO position_id FROM lanes WHERE id = p_lane_id;
    SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
     WHERE lane_id = p_lane_id AND state = 'queued' AND id >= position_id ORDER BY id LIMIT 1;
    UPDATE lanes SET head_id = next_id, head_at = next_at, scan_from = coalesce(next_id, 9223372036854775807)
     WHERE id = p_lane_id AND head_id IS DISTINCT FROM next_id;
    IF next_id IS NOT NULL THEN  -- a job that entered while the head was being claimed notified no worker
        PERFORM pg_notify('lanes', q.pool) FROM lanes l JOIN lane_queues q ON q.id = l.queue_id WHERE l.id = p_lane_id;
    END IF;
    PERFORM refresh_queue_heads(ARRAY[(SELECT queue_id::bigint FROM lanes WHERE id = p_lane_id)]);
END $$;
