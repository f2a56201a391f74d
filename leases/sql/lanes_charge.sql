-- In a pool that shares: who got jobs comes later by their number over its weight, and has waited no more. Elsewhere there are no shares, and
-- nothing is done. p_also: queues that the caller will write; all are locked here, in order.
CREATE OR REPLACE FUNCTION lanes_charge(p_lanes integer[], p_found integer[], p_also integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    charged integer[];
    turned integer[];
BEGIN
    WITH taken AS (
        SELECT q.pool, q.org_slug, sum(looked.jobs) AS jobs
          FROM unnest(p_lanes, p_found) AS looked(lane, jobs)
          JOIN lanes l ON l.id = looked.lane JOIN lane_queues q ON q.id = l.queue_id
         WHERE looked.jobs > 0 GROUP BY q.pool, q.org_slug
    ), held AS (
        SELECT s.id, taken.jobs FROM lane_shares s JOIN taken USING (pool, org_slug)
         ORDER BY s.id FOR NO KEY UPDATE OF s
    ), paid AS (
        UPDATE lane_shares s SET served = s.served + held.jobs::float / s.weight FROM held WHERE s.id = held.id
        RETURNING s.id
    )
    SELECT array_agg(id) INTO charged FROM paid;
    IF charged IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM lane_queues
      WHERE id = ANY (p_also)
         OR id IN (SELECT queue_id FROM lanes WHERE id = ANY (p_lanes))
         OR id IN (SELECT q.id FROM lane_queues q JOIN lane_shares s USING (pool, org_slug) WHERE s.id = ANY (charged))
      ORDER BY id FOR NO KEY UPDATE;
    SELECT array_agg(l.queue_id) INTO turned
      FROM unnest(p_lanes, p_found) AS looked(lane, jobs) JOIN lanes l ON l.id = looked.lane WHERE looked.jobs > 0;
    UPDATE lane_queues q
       SET rank = s.served - s.lead,
           served_at = CASE WHEN q.id = ANY (turned) THEN clock_timestamp() ELSE q.served_at END,
           tier = CASE WHEN q.id = ANY (turned) THEN q.priority ELSE q.tier END
      FROM lane_shares s
     WHERE s.id = ANY (charged) AND q.pool = s.pool AND q.org_slug = s.org_slug AND q.head_id IS NOT NULL;
END $$;
