-- Submit quotas: how many jobs of an organization may wait, and how many it may submit in a minute.
--
-- submit_quotas.room promises that so many more jobs may be submitted. A submit takes from it. A recount, which a submit
-- requests that found too little, sets it to the plan's maximum minus the jobs that wait. Claims, completions and cancels
-- never touch the row. A transaction that adds a waiting job (a submit, a retry, a requeue) holds lock 12 of the
-- organization, shared, until commit; a recount holds it alone, so it sees every job that was added.
-- Lock 12 and this row come before the locks 8, 7 and 6 of release_and_enqueue.

-- Returns how many jobs of the organization wait: queued ones by their lanes, from each lane's scan position, and blocked.
CREATE OR REPLACE FUNCTION count_waiting_jobs(p_org_slug text) RETURNS integer
LANGUAGE sql VOLATILE SET enable_seqscan = off AS $$
    SELECT ((SELECT count(*)
               FROM lane_queues q
               JOIN lanes l ON l.queue_id = q.id
              CROSS JOIN LATERAL (
                SELECT h.head_id, h.scan_from FROM lane_heads h WHERE h.lane_id = l.id ORDER BY h.version DESC LIMIT 1) head
               JOIN runtime_jobs j ON j.lane_id = l.id AND j.state = 'queued' AND j.id >= head.scan_from
              WHERE q.org_slug = p_org_slug AND head.head_id IS NOT NULL)
          + (SELECT count(*) FROM runtime_jobs WHERE org_slug = p_org_slug AND state = 'blocked'))::integer
$$;

-- Takes p_jobs from the organization's quota at the end of a transaction. Raises QT001 with the organization as its message
-- if the quota is short: an error costs the submits that are not refused no row to read. Without p_enforced (requeues,
-- automatic retries, operators) the jobs count and are never refused. Null terms are no limit.
CREATE OR REPLACE FUNCTION take_submit_quota(
    p_org_slug text, p_jobs integer, p_enforced boolean, p_max_queued integer, p_per_minute integer, p_burst integer
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(12, hashtext(p_org_slug));
    UPDATE submit_quotas q
       SET room = CASE WHEN q.max_queued IS NULL THEN q.room ELSE q.room - p_jobs END,
           spent_until = CASE WHEN p_per_minute IS NULL THEN q.spent_until
               ELSE greatest(q.spent_until, clock_timestamp()) + p_jobs * interval '1 minute' / p_per_minute END
     WHERE q.org_slug = p_org_slug
       AND (NOT p_enforced
            OR ((p_max_queued IS NULL OR (q.max_queued = p_max_queued AND q.room >= p_jobs))
                AND (p_per_minute IS NULL OR bucket_tokens(60 * p_per_minute, p_burst, q.spent_until) >= p_jobs)));
    IF NOT FOUND AND p_enforced AND (p_max_queued IS NOT NULL OR p_per_minute IS NOT NULL) THEN
        RAISE EXCEPTION '%', p_org_slug USING ERRCODE = 'QT001';
    END IF;
END $$;

-- Counts the jobs of the organization that wait and sets the room under p_max_queued. Does nothing before the time of the
-- next recount: the pause after a count is proportional to its cost, so a flood of refused submits costs at most a
-- fiftieth of one processor per organization.
CREATE OR REPLACE FUNCTION recount_submit_quota(p_org_slug text, p_max_queued integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    waiting integer;
BEGIN
    PERFORM pg_advisory_xact_lock(12, hashtext(p_org_slug));
    PERFORM FROM submit_quotas q
      WHERE q.org_slug = p_org_slug AND q.max_queued IS NOT DISTINCT FROM p_max_queued
        AND (p_max_queued IS NULL OR q.recount_at > clock_timestamp());
    IF FOUND THEN
        RETURN;
    END IF;
    waiting := CASE WHEN p_max_queued IS NULL THEN 0 ELSE count_waiting_jobs(p_org_slug) END;
    INSERT INTO submit_quotas AS q (org_slug, max_queued, room, counted_at, recount_at)
    VALUES (p_org_slug, p_max_queued, coalesce(p_max_queued - waiting, 0), clock_timestamp(),
            clock_timestamp() + waiting * interval '50 microseconds')
        ON CONFLICT (org_slug) DO UPDATE
       SET max_queued = excluded.max_queued, room = excluded.room, counted_at = excluded.counted_at,
           recount_at = excluded.recount_at;
END $$;
