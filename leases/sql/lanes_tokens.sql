-- How many may start now by a token bucket that is full again at p_spent_until: p_burst when it is full.
CREATE OR REPLACE FUNCTION lanes_tokens(p_per_hour integer, p_burst integer, p_spent_until timestamptz) RETURNS integer
LANGUAGE sql VOLATILE AS $$
    SELECT floor(p_burst - greatest(0, extract(epoch FROM p_spent_until - clock_timestamp()) * p_per_hour / 3600)
                 + 0.000001)::integer
$$;
