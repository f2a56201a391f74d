-- Whether a limit lets nobody start now, and when that changes by itself. For those who have its guard, 8.
CREATE OR REPLACE FUNCTION lanes_full(p_limit integer, OUT is_full boolean, OUT eligible_at timestamptz)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    m lane_limits;
BEGIN
    SELECT * INTO m FROM lane_limits WHERE id = p_limit;
    IF NOT FOUND OR m.until <= clock_timestamp() THEN
        is_full := false;
    ELSIF m.per_hour IS NOT NULL THEN
        is_full := lanes_tokens(m.per_hour, m.burst, m.spent_until) < 1;
        eligible_at := least(m.until, m.spent_until - (m.burst - 1) * interval '1 hour' / m.per_hour);
    ELSE
        is_full := NOT EXISTS (
            SELECT FROM lane_limit_slots WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired);
        eligible_at := m.until;
    END IF;
END $$;
