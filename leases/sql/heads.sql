-- Heads of lanes and queues: rows that almost every job writes (docs/adr/0129). While another transaction keeps a snapshot
-- open, as a backup does for an hour, no vacuum removes their old versions. So nothing here may read them:
--
-- * The head of a lane is found by its newest version: the key ends with a number that rises with each write. An UPDATE
--   says `version >= (SELECT max(version) ...)`. After a wait for another transaction it finds the row that this one wrote.
-- * The order begins with a generation. The scheduler process begins a new one after some writes, brings the heads of the
--   old ones into it, and then lets claims read from the new one on. Old versions stay in old generations.
--
-- A transaction that makes a head servable writes the newest generation. It must have a transaction id before it reads
-- that: a generation is given up after all transactions have ended that may have read an older number (generations.py).

-- Returns the generation into which heads are written.
CREATE OR REPLACE FUNCTION newest_generation() RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT number FROM lane_generations ORDER BY number DESC LIMIT 1), 0);
END $$;

-- Returns the generations in which a head may be, by the snapshot of the statement that calls it.
CREATE OR REPLACE FUNCTION live_generations() RETURNS integer[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    newest lane_generations;
BEGIN
    SELECT * INTO newest FROM lane_generations ORDER BY number DESC LIMIT 1;
    RETURN CASE WHEN newest.number IS NULL THEN '{0}'
                WHEN newest.number = newest.oldest THEN ARRAY[newest.number]
                ELSE ARRAY(SELECT generate_series(newest.oldest, newest.number)) END;
END $$;

-- Returns the head of the oldest lane of a queue that may be served, by the snapshot of the statement; null if there is none.
CREATE OR REPLACE FUNCTION oldest_head(p_queue bigint, OUT head_id bigint, OUT head_at timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT best.head_id, best.head_at INTO head_id, head_at
      FROM unnest(live_generations()) AS live(generation)
     CROSS JOIN LATERAL (
        SELECT l.head_id, l.head_at FROM lane_heads l
         WHERE l.queue_id = p_queue AND l.generation = live.generation
           AND l.head_id IS NOT NULL AND l.blocked_by IS NULL
         ORDER BY l.head_at, l.head_id LIMIT 1) best
     ORDER BY best.head_at, best.head_id LIMIT 1;
END $$;

-- Brings a queue that has a head in line with its lanes: its head is the oldest of those that may be served. "Nothing to
-- serve" is recorded only under lock 6, tried, after a second read. The caller has a transaction id.
CREATE OR REPLACE FUNCTION refresh_queue_head(p_queue bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE queue_heads q
       SET version = nextval('lane_versions'), generation = newest_generation(), head_id = oldest.head_id,
           head_at = oldest.head_at, rank = queue_rank(k.pool, k.org_slug, oldest.head_at),
           tier = queue_tier(k.pool, k.priority, oldest.head_at, q.served_at)
      FROM lane_queues k CROSS JOIN oldest_head(p_queue) AS oldest
     WHERE k.id = p_queue AND q.queue_id = p_queue
       AND q.version >= (SELECT max(n.version) FROM queue_heads n WHERE n.queue_id = p_queue)
       AND oldest.head_id IS NOT NULL AND q.head_id IS NOT NULL AND q.head_id <> oldest.head_id;
    IF NOT FOUND AND (SELECT head_id FROM oldest_head(p_queue)) IS NULL
       AND pg_try_advisory_xact_lock(6, (p_queue & 2147483647)::integer) THEN
        UPDATE queue_heads q SET version = nextval('lane_versions'), head_id = NULL, head_at = NULL
         WHERE q.queue_id = p_queue AND q.version >= (SELECT max(n.version) FROM queue_heads n WHERE n.queue_id = p_queue)
           AND q.head_id IS NOT NULL AND (SELECT head_id FROM oldest_head(p_queue)) IS NULL;
    END IF;
END $$;

-- Locks the heads of these lanes, in the order of their keys.
CREATE OR REPLACE FUNCTION lock_lane_heads(p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT id FROM unnest(p_lanes) AS id) given
       CROSS JOIN LATERAL (SELECT max(n.version) AS version FROM lane_heads n WHERE n.lane_id = given.id) newest
       JOIN lane_heads l ON l.lane_id = given.id AND l.version >= newest.version
      ORDER BY l.lane_id FOR NO KEY UPDATE OF l;
END $$;

-- Locks the heads of these queues, in the order of their keys.
CREATE OR REPLACE FUNCTION lock_queue_heads(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT id FROM unnest(p_queues) AS id) given
       CROSS JOIN LATERAL (SELECT max(n.version) AS version FROM queue_heads n WHERE n.queue_id = given.id) newest
       JOIN queue_heads q ON q.queue_id = given.id AND q.version >= newest.version
      ORDER BY q.queue_id FOR NO KEY UPDATE OF q;
END $$;

-- Brings the heads of these lanes that may be served into the newest generation.
CREATE OR REPLACE FUNCTION move_lane_heads(p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    target integer := newest_generation();
    old bigint[];
BEGIN
    old := ARRAY(
        SELECT l.lane_id::bigint FROM unnest(p_lanes) AS given(id)
         CROSS JOIN LATERAL (SELECT * FROM lane_heads h WHERE h.lane_id = given.id ORDER BY h.version DESC LIMIT 1) l
         WHERE l.generation < target AND l.head_id IS NOT NULL AND l.blocked_by IS NULL);
    PERFORM lock_lane_heads(old);
    UPDATE lane_heads l SET version = nextval('lane_versions'), generation = target
      FROM unnest(old) AS given(id)
     CROSS JOIN LATERAL (SELECT max(n.version) AS version FROM lane_heads n WHERE n.lane_id = given.id) newest
     WHERE l.lane_id = given.id AND l.version >= newest.version
       AND l.generation < target AND l.head_id IS NOT NULL AND l.blocked_by IS NULL;
END $$;

-- Brings the heads of these queues that may be served into the newest generation.
CREATE OR REPLACE FUNCTION move_queue_heads(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    target integer := newest_generation();
    old bigint[];
BEGIN
    old := ARRAY(
        SELECT q.queue_id::bigint FROM unnest(p_queues) AS given(id)
         CROSS JOIN LATERAL (SELECT * FROM queue_heads h WHERE h.queue_id = given.id ORDER BY h.version DESC LIMIT 1) q
         WHERE q.generation < target AND q.head_id IS NOT NULL AND q.blocked_by IS NULL);
    PERFORM lock_queue_heads(old);
    UPDATE queue_heads q SET version = nextval('lane_versions'), generation = target
      FROM unnest(old) AS given(id)
     CROSS JOIN LATERAL (SELECT max(n.version) AS version FROM queue_heads n WHERE n.queue_id = given.id) newest
     WHERE q.queue_id = given.id AND q.version >= newest.version
       AND q.generation < target AND q.head_id IS NOT NULL AND q.blocked_by IS NULL;
END $$;
