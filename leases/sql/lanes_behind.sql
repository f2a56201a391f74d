-- Lanes whose head does not wait any more.
CREATE OR REPLACE FUNCTION lanes_behind(p_most integer) RETURNS SETOF integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.id FROM lanes l JOIN runtime_jobs j ON j.id = l.head_id
                  WHERE j.state <> 'queued' ORDER BY l.id LIMIT p_most;
END $$;
