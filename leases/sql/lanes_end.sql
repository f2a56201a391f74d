-- The last statement of every other verb: give back the slots of jobs that are held no more, and put jobs into their
-- lanes. p_raised: limits that have more room now. All of it makes a "nothing there" false, so its guard is held, shared, until commit.
CREATE OR REPLACE FUNCTION lanes_end(
    p_freed bigint[], p_jobs bigint[], p_lanes integer[], p_ats timestamptz[], p_raised integer[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    one record;
    freed integer[];
    lowered integer[];
    awaited integer[] := '{}';
    changed integer[] := '{}';
    touched integer[];
BEGIN
    FOR one IN SELECT DISTINCT limit_id AS id FROM lane_limit_slots WHERE job_id = ANY (p_freed) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(8, one.id);
    END LOOP;
    -- A limit that was lowered while more ran: whoever ends hands the place on to a job that has none that counts.
    SELECT coalesce(array_agg(id ORDER BY id), '{}') INTO lowered FROM (
        SELECT id FROM lane_limits l
         WHERE id IN (SELECT limit_id FROM lane_limit_slots WHERE job_id = ANY (p_freed))
           AND EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = l.id AND s.retired)
         ORDER BY id FOR NO KEY UPDATE) l;
    DELETE FROM lane_limit_slots WHERE job_id = ANY (p_freed) AND retired;
    WITH given AS (UPDATE lane_limit_slots SET job_id = NULL WHERE job_id = ANY (p_freed) RETURNING limit_id)
    SELECT coalesce(array_agg(DISTINCT limit_id), '{}') INTO freed FROM given;
    FOR one IN SELECT id FROM unnest(lowered) AS id LOOP
        PERFORM lanes_hand_on(one.id);
    END LOOP;
    FOR one IN SELECT DISTINCT id FROM unnest(freed || p_raised) AS id ORDER BY 1 LOOP
        UPDATE lane_limits SET waiting = false WHERE id = one.id AND waiting;
        IF FOUND THEN
            awaited := awaited || one.id;
        END IF;
    END LOOP;
    FOR one IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, one.id);
        PERFORM FROM lanes WHERE id = one.id;
        IF NOT FOUND THEN  -- as in `lanes_keep`
            RAISE EXCEPTION 'Lane % was pruned.', one.id USING ERRCODE = 'serialization_failure';
        END IF;
    END LOOP;
    IF awaited <> '{}' THEN
        SELECT coalesce(array_agg(id), '{}') INTO changed FROM lanes WHERE blocked_by = ANY (awaited);
        PERFORM FROM lanes WHERE id = ANY (changed || p_lanes) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE blocked_by = ANY (awaited);
    END IF;
    -- Most jobs come into a lane that has older ones: then no row is written and no queue looked at.
    FOR one IN
        SELECT lane AS id, min(job) AS job, min(at) AS at
          FROM unnest(p_lanes, p_jobs, p_ats) AS entered(lane, job, at) GROUP BY lane ORDER BY lane
    LOOP
        UPDATE lanes l
           SET scan_from = least(l.scan_from, one.job), head_id = least(l.head_id, one.job),
               head_at = least(l.head_at, one.at), idle_since = NULL
         WHERE l.id = one.id AND (l.head_id IS NULL OR l.head_id > one.job OR l.scan_from > one.job);
        IF FOUND THEN
            changed := changed || one.id;
        ELSE
            -- It waits behind a head that was taken or that not everybody may take, or is that head, given back: the
            -- lane is in the choice, but nobody was called to it.
            PERFORM pg_notify('lanes', q.pool)
               FROM lanes l JOIN lane_queues q ON q.id = l.queue_id JOIN runtime_jobs head ON head.id = l.head_id
              WHERE l.id = one.id AND l.blocked_by IS NULL AND q.blocked_by IS NULL
                AND (head.state <> 'queued' OR head.id = one.job OR head.excluded_workers <> '{}');
        END IF;
    END LOOP;
    SELECT coalesce(array_agg(DISTINCT queue_id), '{}') INTO touched
      FROM lanes WHERE id = ANY (changed) AND head_id IS NOT NULL AND blocked_by IS NULL;
    IF touched <> '{}' OR awaited <> '{}' THEN
        PERFORM lanes_show(touched, awaited, false);
    END IF;
END $$;
