-- Periodic tasks of the scheduler process: activate what is due, apply aging, and advance lanes that claims left behind.

-- Activates lanes and queues that were blocked until a time that has come. Returns how many.
CREATE OR REPLACE FUNCTION activate_due_queues(p_max_rows integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    due_lanes bigint[];
    due_queues bigint[];
BEGIN
    PERFORM pg_current_xact_id();  -- before the newest generation is read: see heads.sql
    SELECT coalesce(array_agg(lane_id::bigint), '{}') INTO due_lanes FROM (
        SELECT lane_id FROM lane_heads WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_max_rows) l;
    PERFORM lock_lane_heads(due_lanes);
    UPDATE lane_heads
       SET version = nextval('lane_versions'), generation = newest_generation(), blocked_by = NULL, eligible_at = NULL
     WHERE lane_id = ANY (due_lanes) AND eligible_at <= clock_timestamp();
    SELECT coalesce(array_agg(DISTINCT id::bigint), '{}') INTO due_queues FROM (
        SELECT queue_id AS id FROM lane_heads WHERE lane_id = ANY (due_lanes) AND head_id IS NOT NULL
         UNION (SELECT queue_id FROM queue_heads
                 WHERE eligible_at <= clock_timestamp() ORDER BY eligible_at LIMIT p_max_rows)) q;
    PERFORM pg_notify('lanes', pool)
       FROM (SELECT DISTINCT unnest(activate_queues(due_queues, '{}', due_queues)) AS pool) activated;
    RETURN cardinality(due_lanes) + cardinality(due_queues);
END $$;

-- Raises the tiers of queues that have waited, and resets those of pools whose aging was switched off. Returns how many.
-- A queue that another transaction has locked is left to the next round. The generation of a head stays.
CREATE OR REPLACE FUNCTION apply_aging(p_max_rows integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    changed integer;
BEGIN
    UPDATE queue_heads h
       SET version = nextval('lane_versions'), tier = queue_tier(old.pool, old.priority, h.head_at, h.served_at)
      FROM (SELECT q.queue_id, q.version, k.pool, k.priority FROM queue_heads q JOIN lane_queues k ON k.id = q.queue_id
             WHERE q.head_id IS NOT NULL AND q.blocked_by IS NULL
               AND q.tier <> queue_tier(k.pool, k.priority, q.head_at, q.served_at)
             ORDER BY q.queue_id LIMIT p_max_rows FOR NO KEY UPDATE OF q SKIP LOCKED) old
     WHERE h.queue_id = old.queue_id AND h.version = old.version;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;

-- Returns lanes whose head is no longer queued.
CREATE OR REPLACE FUNCTION stale_lanes(p_max_rows integer) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.lane_id::bigint FROM lane_heads l JOIN runtime_jobs j ON j.id = l.head_id
                  WHERE j.state <> 'queued' ORDER BY l.lane_id LIMIT p_max_rows;
END $$;

-- Advances the head and the scan position of one lane; one lane a transaction. Claims only try lock 7, so under a steady
-- stream of submits a scan position may stay behind and its scans grow long. Here the lock is waited for.
CREATE OR REPLACE FUNCTION advance_lane_cursor(p_lane_id bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    head lane_heads;
    next_id bigint;
    next_at timestamptz;
BEGIN
    PERFORM pg_current_xact_id();  -- before the newest generation is read: see heads.sql
    PERFORM pg_advisory_xact_lock(7, (p_lane_id & 2147483647)::integer);
    SELECT * INTO head FROM lane_heads WHERE lane_id = p_lane_id ORDER BY version DESC LIMIT 1;
    SELECT id, created_at INTO next_id, next_at FROM runtime_jobs
     WHERE lane_id = p_lane_id AND state = 'queued' AND id >= head.scan_from ORDER BY id LIMIT 1;
    UPDATE lane_heads
       SET version = nextval('lane_versions'), generation = newest_generation(), head_id = next_id, head_at = next_at,
           scan_from = coalesce(next_id, 9223372036854775807)
     WHERE lane_id = p_lane_id AND version >= head.version AND head_id IS DISTINCT FROM next_id;
    IF next_id IS NOT NULL THEN  -- a job that entered while the head was being claimed notified no worker
        PERFORM pg_notify('lanes', pool) FROM lane_queues WHERE id = head.queue_id;
    END IF;
    PERFORM refresh_queue_head(head.queue_id);
END $$;
