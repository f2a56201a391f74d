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
               SET head_id = head.head_id, head_at = head.head_at, rank = extract(epoch FROM head.head_at),
                   tier = CASE WHEN head.head_at > q.head_at THEN q.priority ELSE q.tier END
             WHERE q.id = one.id AND q.head_id IS NOT NULL AND q.head_id IS DISTINCT FROM head.head_id;
        ELSIF pg_try_advisory_xact_lock(6, one.id) THEN
            UPDATE lane_queues q SET head_id = NULL, head_at = NULL
             WHERE q.id = one.id AND q.head_id IS NOT NULL
               AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id
                                AND l.head_id IS NOT NULL AND l.blocked_by IS NULL);
        END IF;
    END LOOP;
END $$;
