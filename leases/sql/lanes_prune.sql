-- Delete what idles: lanes, then queues without lanes, then limits that were made for a key or an address and hold no
-- lane. Each call looks at p_most rows after p_after in the order of their ids and is one short transaction; looked_to is
-- null at the end of the table. Nothing here waits: every guard is tried, every row is skipped if it is locked.
--
-- A lane is idle when nothing waits in it; the first call that sees that writes idle_since, `lanes_end` clears it. It goes
-- when it has idled for p_idle and no job refers to it that may still move: queued, blocked or held. Guard 7, taken alone,
-- excludes submits and requeues that are about to commit; one that looked the lane up and commits later finds in
-- `lanes_keep` that it is gone.
CREATE OR REPLACE FUNCTION lanes_prune(
    p_after integer, p_most integer, p_idle interval, OUT looked_to integer, OUT pruned integer
) LANGUAGE plpgsql AS $$
DECLARE
    fresh integer[];
    old integer[];
    guarded integer[] := '{}';
    one integer;
BEGIN
    SELECT CASE WHEN count(*) = p_most THEN max(id) END,
           coalesce(array_agg(id) FILTER (WHERE head_id IS NULL AND idle_since IS NULL), '{}'),
           coalesce(array_agg(id ORDER BY id) FILTER (
               WHERE head_id IS NULL AND blocked_by IS NULL AND idle_since <= clock_timestamp() - p_idle), '{}')
      INTO looked_to, fresh, old
      FROM (SELECT * FROM lanes WHERE id > p_after ORDER BY id LIMIT p_most) looked;
    UPDATE lanes SET idle_since = clock_timestamp()
     WHERE id IN (SELECT id FROM lanes WHERE id = ANY (fresh) AND head_id IS NULL FOR NO KEY UPDATE SKIP LOCKED);
    FOREACH one IN ARRAY old LOOP
        IF pg_try_advisory_xact_lock(7, one) THEN
            guarded := guarded || one;
        END IF;
    END LOOP;
    pruned := 0;
    IF guarded = '{}' THEN
        RETURN;
    END IF;
    DELETE FROM lanes WHERE id IN (
        SELECT l.id FROM lanes l
         WHERE l.id = ANY (guarded) AND l.head_id IS NULL AND l.blocked_by IS NULL
           AND l.idle_since <= clock_timestamp() - p_idle
           AND NOT EXISTS (SELECT FROM runtime_jobs j WHERE j.lane_id = l.id AND j.state = 'queued')
           AND l.id <> ALL (ARRAY(SELECT DISTINCT j.lane_id FROM runtime_jobs j
                WHERE j.state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading')
                  AND j.lane_id = ANY (guarded)))
           AND l.id <> ALL (ARRAY(SELECT DISTINCT j.lane_id FROM runtime_jobs j
                WHERE j.state = 'blocked' AND j.lane_id = ANY (guarded)))
         FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;

-- Who makes a lane holds guard 4 of its organization from before it looks for the queue; claims hold guard 5.
CREATE OR REPLACE FUNCTION lane_queues_prune(p_after integer, p_most integer, OUT looked_to integer, OUT pruned integer)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    guarded integer[] := '{}';
BEGIN
    SELECT CASE WHEN count(*) = p_most THEN max(id) END INTO looked_to
      FROM (SELECT id FROM lane_queues WHERE id > p_after ORDER BY id LIMIT p_most) looked;
    FOR one IN
        SELECT q.id, hashtext(q.org_slug) AS org
          FROM (SELECT * FROM lane_queues WHERE id > p_after ORDER BY id LIMIT p_most) q
         WHERE q.head_id IS NULL AND q.blocked_by IS NULL
           AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id) ORDER BY q.id
    LOOP
        IF pg_try_advisory_xact_lock(4, one.org) AND pg_try_advisory_xact_lock(5, one.id) THEN
            guarded := guarded || one.id;
        END IF;
    END LOOP;
    DELETE FROM lane_queues WHERE id IN (
        SELECT q.id FROM lane_queues q
         WHERE q.id = ANY (guarded) AND q.head_id IS NULL AND q.blocked_by IS NULL
           AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id)
         FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;

-- Limits that jobs made: of a concurrency key (who makes its lane holds guard 4 of the organization) and of a source
-- address (guard 10 of the address; claims hold that, too). Guard 8 excludes who gives a slot back.
CREATE OR REPLACE FUNCTION lane_limits_prune(p_after integer, p_most integer, OUT looked_to integer, OUT pruned integer)
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    guarded integer[] := '{}';
    gone integer[];
BEGIN
    SELECT CASE WHEN count(*) = p_most THEN max(id) END INTO looked_to
      FROM (SELECT id FROM lane_limits WHERE id > p_after ORDER BY id LIMIT p_most) looked;
    FOR one IN
        SELECT m.id, CASE m.kind WHEN 'concurrency' THEN 4 ELSE 10 END AS number,
               hashtext(CASE m.kind WHEN 'concurrency' THEN m.org_slug ELSE m.key END) AS key
          FROM (SELECT * FROM lane_limits WHERE id > p_after ORDER BY id LIMIT p_most) m
         WHERE m.kind IN ('concurrency', 'source_address') ORDER BY m.id
    LOOP
        IF pg_try_advisory_xact_lock(one.number, one.key) AND pg_try_advisory_xact_lock(8, one.id) THEN
            guarded := guarded || one.id;
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(id), '{}') INTO gone FROM (
        SELECT m.id FROM lane_limits m
         WHERE m.id = ANY (guarded)
           AND m.id <> ALL (ARRAY(SELECT DISTINCT named FROM lanes l CROSS JOIN unnest(l.limits) AS named
                WHERE l.limits && guarded))
           AND NOT EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = m.id AND s.job_id IS NOT NULL)
         FOR UPDATE SKIP LOCKED) idle;
    DELETE FROM lane_limit_slots WHERE limit_id = ANY (gone);
    DELETE FROM lane_limits WHERE id = ANY (gone);
    pruned := cardinality(gone);
END $$;
