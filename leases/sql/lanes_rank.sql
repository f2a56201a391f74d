-- Where a queue stands among those of its priority: by the age of its head or, in a pool that shares, by what its
-- organization has had.
CREATE OR REPLACE FUNCTION lanes_rank_of(p_pool text, p_org text, p_head_at timestamptz) RETURNS float
LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT served - lead FROM lane_shares WHERE pool = p_pool AND org_slug = p_org),
                    extract(epoch FROM p_head_at))
$$;

DROP FUNCTION IF EXISTS lanes_tier_of(integer, timestamptz);  -- of an older form of this
-- The priority and what waiting adds to it, in steps of ten points: so that nothing waits for ever. Nothing grows into
-- the emergency lane. Without the setting nothing is added. Where organizations take turns (p_served_at) it is the wait
-- since the last turn: by its age alone a large backlog would be before all that came later.
CREATE OR REPLACE FUNCTION lanes_tier_of(p_priority integer, p_head_at timestamptz, p_served_at timestamptz)
RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_priority >= 399 THEN p_priority ELSE least(399, p_priority + coalesce(10 * floor(
        greatest(0, extract(epoch FROM clock_timestamp() - greatest(p_head_at, p_served_at)))
        / nullif(10 * nullif(current_setting('orchestrator.aging_seconds', true), '')::float, 0)), 0))::integer END
$$;

-- Bring queues in line with their lanes: the oldest that may be served is the head. "Nothing to serve" is written only
-- under guard 6, tried, after a fresh look.
CREATE OR REPLACE FUNCTION lanes_rank(p_queues integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    head record;
BEGIN
    FOR one IN SELECT DISTINCT q AS id FROM unnest(p_queues) AS q ORDER BY q LOOP
        SELECT head_id, head_at INTO head FROM lanes
         WHERE queue_id = one.id AND head_id IS NOT NULL AND blocked_by IS NULL ORDER BY head_at, head_id LIMIT 1;
        IF FOUND THEN
            UPDATE lane_queues q
               SET head_id = head.head_id, head_at = head.head_at,
                   rank = lanes_rank_of(q.pool, q.org_slug, head.head_at),
                   tier = lanes_tier_of(q.priority, head.head_at, q.served_at)
             WHERE q.id = one.id AND q.head_id IS NOT NULL AND q.head_id IS DISTINCT FROM head.head_id;
        ELSIF pg_try_advisory_xact_lock(6, one.id) THEN
            UPDATE lane_queues q SET head_id = NULL, head_at = NULL
             WHERE q.id = one.id AND q.head_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id
                                AND l.head_id IS NOT NULL AND l.blocked_by IS NULL);
        END IF;
    END LOOP;
END $$;
