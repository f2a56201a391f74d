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
