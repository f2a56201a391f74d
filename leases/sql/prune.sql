-- Retention of scheduler rows: idle lanes, then queues without lanes, then limits that were created for a key or an address
-- and apply to no lane. Each call reads p_max_rows rows after p_after in the order of their ids and is one short
-- transaction; next_after is null at the end of the table. Nothing waits: locks are tried, locked rows are skipped.

-- A lane is idle when no job waits in it. The first call that sees that writes idle_since; release_and_enqueue clears
-- it. The lane is deleted after p_idle unless a job refers to it that may still move: queued, blocked or leased. Lock 7,
-- taken alone, excludes submits and requeues that are about to commit. One that looked the lane up and commits later finds
-- in require_lanes that the lane is missing.
CREATE OR REPLACE FUNCTION prune_idle_lanes(
    p_after bigint, p_max_rows integer, p_idle interval, OUT next_after bigint, OUT pruned integer
) LANGUAGE plpgsql AS $$
DECLARE
    newly_idle bigint[];
    candidates bigint[];
    locked bigint[] := '{}';
    lane bigint;
BEGIN
    SELECT CASE WHEN count(*) = p_max_rows THEN max(id) END,
           coalesce(array_agg(id::bigint) FILTER (WHERE head_id IS NULL AND idle_since IS NULL), '{}'),
           coalesce(array_agg(id::bigint ORDER BY id) FILTER (
               WHERE head_id IS NULL AND blocked_by IS NULL AND idle_since <= clock_timestamp() - p_idle), '{}')
      INTO next_after, newly_idle, candidates
      FROM (SELECT id FROM lanes WHERE id > p_after ORDER BY id LIMIT p_max_rows) batch
     CROSS JOIN LATERAL (SELECT * FROM lane_heads h WHERE h.lane_id = batch.id ORDER BY h.version DESC LIMIT 1) head;
    UPDATE lane_heads l SET version = nextval('lane_versions'), idle_since = clock_timestamp()
      FROM (SELECT lane_id, version FROM lane_heads
             WHERE lane_id = ANY (newly_idle) AND head_id IS NULL FOR NO KEY UPDATE SKIP LOCKED) idle
     WHERE l.lane_id = idle.lane_id AND l.version = idle.version;
    FOREACH lane IN ARRAY candidates LOOP
        IF pg_try_advisory_xact_lock(7, (lane & 2147483647)::integer) THEN
            locked := locked || lane;
        END IF;
    END LOOP;
    pruned := 0;
    IF locked = '{}' THEN
        RETURN;
    END IF;
    WITH idle AS (
        SELECT l.lane_id, l.version FROM lane_heads l JOIN lanes k ON k.id = l.lane_id
         WHERE l.lane_id = ANY (locked) AND l.head_id IS NULL AND l.blocked_by IS NULL
           AND l.idle_since <= clock_timestamp() - p_idle
           AND NOT EXISTS (SELECT FROM runtime_jobs j WHERE j.lane_id = l.lane_id AND j.state = 'queued')
           AND l.lane_id <> ALL (ARRAY(SELECT DISTINCT j.lane_id FROM runtime_jobs j
                WHERE j.state IN ('leased', 'starting', 'checking_out', 'executing', 'uploading')
                  AND j.lane_id = ANY (locked)))
           AND l.lane_id <> ALL (ARRAY(SELECT DISTINCT j.lane_id FROM runtime_jobs j
                WHERE j.state = 'blocked' AND j.lane_id = ANY (locked)))
         FOR UPDATE OF k, l SKIP LOCKED
    ), headless AS (
        DELETE FROM lane_heads l USING idle WHERE l.lane_id = idle.lane_id AND l.version = idle.version
        RETURNING l.lane_id
    )
    DELETE FROM lanes WHERE id IN (SELECT lane_id FROM headless);
    GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;

-- A transaction that creates a lane holds lock 4 of its organization from before it looks up the queue; claims hold lock 5.
CREATE OR REPLACE FUNCTION prune_empty_queues(
    p_after bigint, p_max_rows integer, OUT next_after bigint, OUT pruned integer
) LANGUAGE plpgsql AS $$
DECLARE
    item record;
    locked bigint[] := '{}';
BEGIN
    SELECT CASE WHEN count(*) = p_max_rows THEN max(id) END INTO next_after
      FROM (SELECT id FROM lane_queues WHERE id > p_after ORDER BY id LIMIT p_max_rows) batch;
    FOR item IN
        SELECT q.id::bigint AS id, hashtext(q.org_slug) AS org
          FROM (SELECT * FROM lane_queues WHERE id > p_after ORDER BY id LIMIT p_max_rows) q
         CROSS JOIN LATERAL (SELECT * FROM queue_heads h WHERE h.queue_id = q.id ORDER BY h.version DESC LIMIT 1) head
         WHERE head.head_id IS NULL AND head.blocked_by IS NULL
           AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.id) ORDER BY q.id
    LOOP
        IF pg_try_advisory_xact_lock(4, item.org)
           AND pg_try_advisory_xact_lock(5, (item.id & 2147483647)::integer) THEN
            locked := locked || item.id;
        END IF;
    END LOOP;
    WITH empty AS (
        SELECT q.queue_id, q.version FROM queue_heads q JOIN lane_queues k ON k.id = q.queue_id
         WHERE q.queue_id = ANY (locked) AND q.head_id IS NULL AND q.blocked_by IS NULL
           AND NOT EXISTS (SELECT FROM lanes l WHERE l.queue_id = q.queue_id)
         FOR UPDATE OF k, q SKIP LOCKED
    ), headless AS (
        DELETE FROM queue_heads q USING empty WHERE q.queue_id = empty.queue_id AND q.version = empty.version
        RETURNING q.queue_id
    )
    DELETE FROM lane_queues WHERE id IN (SELECT queue_id FROM headless);
    GET DIAGNOSTICS pruned = ROW_COUNT;
END $$;

-- Limits that jobs created: of a concurrency key (a transaction that creates its lane holds lock 4 of the organization) and
-- of a source address (lock 10 of the address, which claims hold, too). Lock 8 excludes a release of a slot.
CREATE OR REPLACE FUNCTION prune_unused_limits(
    p_after bigint, p_max_rows integer, OUT next_after bigint, OUT pruned integer
) LANGUAGE plpgsql AS $$
DECLARE
    item record;
    locked bigint[] := '{}';
    unused bigint[];
BEGIN
    SELECT CASE WHEN count(*) = p_max_rows THEN max(id) END INTO next_after
      FROM (SELECT id FROM lane_limits WHERE id > p_after ORDER BY id LIMIT p_max_rows) batch;
    FOR item IN
        SELECT m.id::bigint AS id, CASE m.kind WHEN 'concurrency' THEN 4 ELSE 10 END AS number,
               hashtext(CASE m.kind WHEN 'concurrency' THEN m.org_slug ELSE m.key END) AS key
          FROM (SELECT * FROM lane_limits WHERE id > p_after ORDER BY id LIMIT p_max_rows) m
         WHERE m.kind IN ('concurrency', 'source_address') ORDER BY m.id
    LOOP
        IF pg_try_advisory_xact_lock(item.number, item.key)
           AND pg_try_advisory_xact_lock(8, (item.id & 2147483647)::integer) THEN
            locked := locked || item.id;
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(id::bigint), '{}') INTO unused FROM (
        SELECT m.id FROM lane_limits m
         WHERE m.id = ANY (locked)
           AND m.id <> ALL (ARRAY(SELECT DISTINCT named FROM lanes l CROSS JOIN unnest(l.limits) AS named
                WHERE l.limits::bigint[] && locked))
           AND NOT EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = m.id AND s.job_id IS NOT NULL)
         FOR UPDATE SKIP LOCKED) idle;
    DELETE FROM lane_limit_slots WHERE limit_id = ANY (unused);
    DELETE FROM lane_limits WHERE id = ANY (unused);
    pruned := cardinality(unused);
END $$;
