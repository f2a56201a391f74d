-- How many of p_most jobs of this priority may start under one limit now, and the places that they take: locked, so
-- that nobody else gets them. Waits for nobody: `again` says that a place was there but in somebody's hands.
-- `counted`: the job takes a place if there is one and is not held by the limit if there is none.
CREATE OR REPLACE FUNCTION lanes_room(
    p_limit integer, p_most integer, p_priority integer,
    OUT room integer, OUT places bigint[], OUT counted boolean, OUT rate boolean, OUT again boolean
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
    bucket timestamptz;
    start bigint;
BEGIN
    places := '{}';
    counted := false;
    rate := false;
    again := false;
    SELECT * INTO m FROM lane_limits WHERE id = p_limit;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        room := p_most;
        RETURN;
    END IF;
    rate := m.per_hour IS NOT NULL;
    IF rate THEN
        -- All terms again under the lock: they may have been changed since, and old ones would start too many.
        SELECT per_hour, burst, spent_until INTO m.per_hour, m.burst, bucket
          FROM lane_limits WHERE id = p_limit FOR NO KEY UPDATE SKIP LOCKED;
        again := NOT FOUND;
        room := CASE WHEN again THEN 0 ELSE least(p_most, lanes_tokens(m.per_hour, m.burst, bucket)) END;
        RETURN;
    END IF;
    counted := p_priority >= m.binds_below IS TRUE;
    -- From a moving start: those that come together do not all try the same rows first.
    start := floor(random() * m.max_active);
    SELECT array_agg(n) INTO places FROM (
        SELECT n FROM lane_limit_slots
         WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired AND n >= start
         ORDER BY n LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED) free;
    IF places IS NULL THEN
        SELECT array_agg(n) INTO places FROM (
            SELECT n FROM lane_limit_slots
             WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired AND n < start
             ORDER BY n LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED) free;
    END IF;
    places := coalesce(places, '{}');
    IF counted THEN
        room := p_most;
        RETURN;
    END IF;
    room := cardinality(places);
    -- A job that the limit does not hold came while this place was in the hands of the one that ended: it counts first.
    IF room > 0 AND m.binds_below IS NOT NULL THEN
        room := greatest(0, room - (SELECT count(*)::integer FROM lane_limit_slots WHERE limit_id = p_limit AND retired));
    END IF;
    again := room = 0 AND EXISTS (
        SELECT FROM lane_limit_slots WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired);
END $$;
