-- Lanes of these queues have something to serve (again): put the queues into the choice. p_awaited: limits that block
-- no more; p_due: take those out, too, whose time has come.
--
-- A tenant that comes back begins where the one stands that was served least: it has no claim to what it did not use.
-- But its first three turns come first, so that who has little to do does not wait for who always has: each is as far
-- ahead as any other that came, and who comes again has used up what it was ahead, or still is and gets no more.
CREATE OR REPLACE FUNCTION lanes_show(p_queues integer[], p_awaited integer[], p_due boolean) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    freed integer[] := '{}';
    woken text[] := '{}';
    pool_name text;
BEGIN
    FOR one IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM pg_advisory_xact_lock_shared(6, one.id);
    END LOOP;
    PERFORM lanes_floor(p_queues);
    IF p_awaited <> '{}' OR p_due THEN
        SELECT coalesce(array_agg(id), '{}') INTO freed FROM (
            SELECT id FROM lane_queues
             WHERE blocked_by = ANY (p_awaited) OR (p_due AND eligible_at <= clock_timestamp())
             ORDER BY id FOR NO KEY UPDATE) q;
        PERFORM FROM lane_queues WHERE id = ANY (freed || p_queues) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lane_queues SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (freed);
        SELECT coalesce(array_agg(DISTINCT pool), '{}') INTO woken
          FROM lane_queues WHERE id = ANY (freed) AND head_id IS NOT NULL;
    END IF;
    FOR one IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE lane_queues q
           SET head_id = head.head_id, head_at = head.head_at,
               rank = lanes_rank_of(q.pool, q.org_slug, head.head_at),
               tier = lanes_tier_of(q.priority, head.head_at, q.served_at)
          FROM (SELECT head_id, head_at FROM lanes
                 WHERE queue_id = one.id AND head_id IS NOT NULL AND blocked_by IS NULL
                 ORDER BY head_at, head_id LIMIT 1) head
         WHERE q.id = one.id AND (q.head_id IS NULL OR q.head_id > head.head_id)
        RETURNING CASE WHEN q.blocked_by IS NULL THEN q.pool END INTO pool_name;
        IF NOT FOUND THEN
            -- It has an older head: one that was taken, or that not everybody may take, calls nobody to the others.
            SELECT q.pool INTO pool_name FROM lane_queues q JOIN runtime_jobs head ON head.id = q.head_id
             WHERE q.id = one.id AND q.blocked_by IS NULL AND (head.state <> 'queued' OR head.excluded_workers <> '{}');
        END IF;
        IF pool_name IS NOT NULL THEN
            woken := woken || pool_name;
        END IF;
    END LOOP;
    -- Only now, never for a job that joins others: NOTIFY takes a lock of the whole cluster at commit.
    PERFORM pg_notify('lanes', pool) FROM (SELECT DISTINCT unnest(woken) AS pool) w;
END $$;

CREATE OR REPLACE FUNCTION lanes_floor(p_queues integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    least float;
BEGIN
    FOR one IN
        SELECT DISTINCT s.id, s.pool FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.id = ANY (p_queues) AND NOT EXISTS (
            SELECT FROM lane_queues other WHERE other.pool = s.pool AND other.org_slug = s.org_slug
               AND other.head_id IS NOT NULL AND other.blocked_by IS NULL)
         ORDER BY s.id
    LOOP
        SELECT s.served INTO least FROM lane_queues q JOIN lane_shares s USING (pool, org_slug)
         WHERE q.pool = one.pool AND q.head_id IS NOT NULL AND q.blocked_by IS NULL ORDER BY q.rank LIMIT 1;
        UPDATE lane_shares SET served = least, lead = 3 WHERE id = one.id AND served < least;
    END LOOP;
END $$;
