-- Heads of lanes and queues: rows that almost every job writes (docs/adr/0129). While another transaction keeps a snapshot
-- open, as a backup does for an hour, no vacuum removes their old versions. So nothing here may read them:
--
-- * The head of a lane is found by its newest version: the key ends with a number that rises with each write. An UPDATE
--   says `version >= (SELECT version ... ORDER BY version DESC LIMIT 1)`. After a wait for another transaction it finds the row that this one wrote.
-- * The order begins with a generation. The scheduler process begins a new one after some writes, brings the heads of the
--   old ones into it, and then lets claims read from the new one on. Old versions stay in old generations.
--
-- A transaction that makes a head servable writes the newest generation. It must have a transaction id before the snapshot
-- with which it reads that: a generation is given up after all transactions have ended that may have read an older number
-- (generations.py).

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
       AND q.version >= (
           SELECT n.version FROM queue_heads n WHERE n.queue_id = p_queue ORDER BY n.version DESC LIMIT 1)
       AND oldest.head_id IS NOT NULL AND q.head_id IS NOT NULL AND q.head_id <> oldest.head_id;
    IF NOT FOUND AND (SELECT head_id FROM oldest_head(p_queue)) IS NULL
       AND pg_try_advisory_xact_lock(6, (p_queue & 2147483647)::integer) THEN
        UPDATE queue_heads q SET version = nextval('lane_versions'), head_id = NULL, head_at = NULL
         WHERE q.queue_id = p_queue
           AND q.version >= (
               SELECT n.version FROM queue_heads n WHERE n.queue_id = p_queue ORDER BY n.version DESC LIMIT 1)
           AND q.head_id IS NOT NULL AND (SELECT head_id FROM oldest_head(p_queue)) IS NULL;
    END IF;
END $$;

-- The functions below name one head a statement: a join would read all versions if the statistics say that there are few.
-- Lanes and queues have a function each: PL/pgSQL plans a statement anew at each call if a table is an argument.

-- Locks the heads of these lanes, in the order of their keys.
CREATE OR REPLACE FUNCTION lock_lane_heads(p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
BEGIN
    FOR item IN SELECT DISTINCT id FROM unnest(p_lanes) AS id ORDER BY id LOOP
        PERFORM FROM lane_heads WHERE lane_id = item.id ORDER BY version DESC LIMIT 1 FOR NO KEY UPDATE;
    END LOOP;
END $$;

-- Locks the heads of these queues, in the order of their keys.
CREATE OR REPLACE FUNCTION lock_queue_heads(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
BEGIN
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM FROM queue_heads WHERE queue_id = item.id ORDER BY version DESC LIMIT 1 FOR NO KEY UPDATE;
    END LOOP;
END $$;

-- Brings the heads of these lanes that may be served into the newest generation, in the order of their keys.
CREATE OR REPLACE FUNCTION move_lane_heads(p_lanes bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
    target integer := newest_generation();
BEGIN
    FOR item IN SELECT id FROM unnest(p_lanes) AS id ORDER BY id LOOP
        UPDATE lane_heads SET version = nextval('lane_versions'), generation = target
         WHERE lane_id = item.id AND generation < target AND head_id IS NOT NULL AND blocked_by IS NULL
           AND version >= (
               SELECT n.version FROM lane_heads n WHERE n.lane_id = item.id ORDER BY n.version DESC LIMIT 1);
    END LOOP;
END $$;

-- Brings the heads of these queues that may be served into the newest generation, in the order of their keys.
CREATE OR REPLACE FUNCTION move_queue_heads(p_queues bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    item record;
    target integer := newest_generation();
BEGIN
    FOR item IN SELECT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE queue_heads SET version = nextval('lane_versions'), generation = target
         WHERE queue_id = item.id AND generation < target AND head_id IS NOT NULL AND blocked_by IS NULL
           AND version >= (
               SELECT n.version FROM queue_heads n WHERE n.queue_id = item.id ORDER BY n.version DESC LIMIT 1);
    END LOOP;
END $$;
