-- Jobs in retired slots of a limit move into its free ones. The caller holds the limit's row. A slot that a claim has in
-- its hands looks free until that commits: such a one is passed over.
CREATE OR REPLACE FUNCTION lanes_hand_on(p_limit integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT free.n, old.n AS old_n, old.job_id
          FROM (SELECT n, row_number() OVER (ORDER BY n) AS place
                  FROM (SELECT n FROM lane_limit_slots
                         WHERE limit_id = p_limit AND job_id IS NULL AND NOT retired
                         ORDER BY n FOR NO KEY UPDATE SKIP LOCKED) untouched) free
          JOIN (SELECT n, job_id, row_number() OVER (ORDER BY n) AS place FROM lane_limit_slots
                 WHERE limit_id = p_limit AND retired) old USING (place)
    LOOP
        DELETE FROM lane_limit_slots WHERE limit_id = p_limit AND n = one.old_n;
        UPDATE lane_limit_slots SET job_id = one.job_id WHERE limit_id = p_limit AND n = one.n;
    END LOOP;
END $$;
