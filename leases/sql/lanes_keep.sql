-- Hold guard 7 of these lanes, shared, until commit, and make sure that each is still there: whoever puts a job into a
-- lane that was looked up before may have met `lanes_prune`. Raises 40001 for a lane that is gone: the transaction is
-- tried again and makes a new one.
CREATE OR REPLACE FUNCTION lanes_keep(p_lanes integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, one.id);
        PERFORM FROM lanes WHERE id = one.id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'Lane % was pruned.', one.id USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
END $$;
