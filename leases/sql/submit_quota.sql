-- Submit quotas: how many jobs of an organization may wait, and how many it may submit in a minute.
--
-- submit_quotas.room promises that so many more jobs may be submitted. A submit takes from it; a recount, which a submit
-- asks for that found too little, sets it to the plan's maximum minus the jobs that wait. Claims, completions and cancels
-- never touch the row. Whoever adds a waiting job (a submit, a retry, a requeue) holds guard 12 of the organization,
-- shared, until commit; a recount holds it alone, so no job that it cannot see is on its way.
-- Order of locks: guard 12 and this row come before the guards 8, 7, 6 of `lanes_end`.

-- Take p_jobs from the organization's quota at the end of a transaction. Raises QT001 with the organization as its message
-- if the quota is short: an error costs the others, which are not refused, no row to be read. Not p_enforced (requeues,
-- automatic retries, operators): the jobs count, and are never refused. Null terms are no limit.
CREATE OR REPLACE FUNCTION submit_quota_take(
    p_org text, p_jobs integer, p_enforced boolean, p_max_queued integer, p_per_minute integer, p_burst integer
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(12, hashtext(p_org));
    UPDATE submit_quotas q
       SET room = CASE WHEN q.max_queued IS NULL THEN q.room ELSE q.room - p_jobs END,
           spent_until = CASE WHEN p_per_minute IS NULL THEN q.spent_until
               ELSE greatest(q.spent_until, clock_timestamp()) + p_jobs * interval '1 minute' / p_per_minute END
     WHERE q.org_slug = p_org
       AND (NOT p_enforced
            OR ((p_max_queued IS NULL OR (q.max_queued = p_max_queued AND q.room >= p_jobs))
                AND (p_per_minute IS NULL OR lanes_tokens(60 * p_per_minute, p_burst, q.spent_until) >= p_jobs)));
    IF NOT FOUND AND p_enforced AND (p_max_queued IS NOT NULL OR p_per_minute IS NOT NULL) THEN
        RAISE EXCEPTION '%', p_org USING ERRCODE = 'QT001';
    END IF;
END $$;

-- Count the jobs of the organization that wait and set the room under p_max_queued. Does nothing before the time of the
-- next recount: the pause after a count is proportional to its cost, so a flood of refused submits costs no more than a
-- fiftieth of one processor per organization.
CREATE OR REPLACE FUNCTION submit_quota_recount(p_org text, p_max_queued integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    waiting integer;
BEGIN
    PERFORM pg_advisory_xact_lock(12, hashtext(p_org));
    PERFORM FROM submit_quotas q
      WHERE q.org_slug = p_org AND q.max_queued IS NOT DISTINCT FROM p_max_queued
        AND (p_max_queued IS NULL OR q.recount_at > clock_timestamp());
    IF FOUND THEN
        RETURN;
    END IF;
    waiting := CASE WHEN p_max_queued IS NULL THEN 0 ELSE submit_quota_waiting(p_org) END;
    INSERT INTO submit_quotas AS q (org_slug, max_queued, room, counted_at, recount_at)
    VALUES (p_org, p_max_queued, coalesce(p_max_queued - waiting, 0), clock_timestamp(),
            clock_timestamp() + waiting * interval '50 microseconds')
        ON CONFLICT (org_slug) DO UPDATE
       SET max_queued = excluded.max_queued, room = excluded.room, counted_at = excluded.counted_at,
           recount_at = excluded.recount_at;
END $$;
