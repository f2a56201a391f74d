-- The store of a unit of work: one statement compares versions, writes rows and events, and updates the lanes
-- (write_changes). Advisory locks and the order of all locks: leases/advisory_locks.py. Design: docs/adr/0053.
--
-- The plans are generic and use indexes: a custom plan would be made at each call, and statistics of small, busy tables
-- are stale. A set of JSON objects is estimated at 100 rows, for which a join would read a whole table.
--
-- The columns are in no list here: leases/sql_functions.py puts those of the models in place of the expressions in double
-- braces. A changed row keeps each column that its JSON object does not name, so processes of the former release, which
-- do not know a new column, leave its value. An inserted row gets the default of the database for it.

-- Writes the changes of one operation, or nothing if a row has another version than the operation has read.
--
-- p_job_ids, p_job_versions: changed jobs that were read without a lock, in the order of their keys, and their xmin.
-- p_lease_ids, p_lease_versions: likewise leases. Null if the caller holds the locks.
-- p_live_until: the first expiry of a lease that the operation took for live.
-- p_new_jobs, p_new_leases, p_events, p_jobs, p_leases: JSON arrays of objects with columns. p_event, p_job, p_lease:
-- the object instead, if there is only one: a statement for one row costs less than one that joins a set.
-- p_rows: JSON, arrays of new rows by table, of the models that are WRITTEN_WITH_CHANGES.
-- p_finish: also update quotas and lanes, as the last statement of the transaction. p_quotas: JSON, the arguments of
-- take_submit_quota, ordered by organization. p_freed: jobs that are no longer leased. p_entered, p_entered_lanes,
-- p_entered_at: jobs that wait again. p_kept: lanes of jobs that are blocked. New jobs need none of the last two.
-- Returns whether a version differs, the keys of new rows by their public ids, and the pools to announce after the commit.
-- Raises OC001 instead if a difference was found after a write.
CREATE OR REPLACE FUNCTION write_changes(
    p_job_ids bigint[], p_job_versions xid[], p_lease_ids bigint[], p_lease_versions xid[],
    p_live_until timestamptz, p_new_jobs json, p_new_leases json, p_event json, p_events json,
    p_job jsonb, p_jobs jsonb, p_lease jsonb, p_leases jsonb, p_rows json, p_finish boolean, p_quotas json,
    p_freed bigint[], p_entered bigint[], p_entered_lanes bigint[], p_entered_at timestamptz[],
    p_kept bigint[],
    OUT is_changed boolean, OUT job_names text[], OUT job_keys bigint[], OUT lease_names text[], OUT lease_keys bigint[],
    OUT pools text[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    found_versions xid[];
    new_job runtime_jobs;
    new_lease runtime_worker_leases;
    new_event runtime_job_events;
    written bigint;
    quota record;
    entered bigint[] := p_entered;
    entered_lanes bigint[] := p_entered_lanes;
    entered_at timestamptz[] := p_entered_at;
    kept bigint[] := p_kept;
BEGIN
    is_changed := false;
    -- One job without other rows is locked by its UPDATE below. Beside several leases it is locked here, before them.
    IF p_job_ids IS NOT NULL AND (p_job IS NULL OR p_leases IS NOT NULL) THEN
        SELECT array_agg(found.version) INTO found_versions FROM (
            SELECT t.xmin AS version FROM runtime_jobs t
             WHERE t.id = ANY (p_job_ids) ORDER BY t.id FOR NO KEY UPDATE) found;
        IF found_versions IS DISTINCT FROM p_job_versions THEN
            is_changed := true;
            RETURN;
        END IF;
    END IF;
    IF p_lease_ids IS NOT NULL AND p_lease IS NULL THEN
        -- After the locks of the jobs: operations lock a job before its lease.
        SELECT array_agg(found.version) INTO found_versions FROM (
            SELECT t.xmin AS version FROM runtime_worker_leases t
             WHERE t.id = ANY (p_lease_ids) ORDER BY t.id FOR NO KEY UPDATE) found;
        IF found_versions IS DISTINCT FROM p_lease_versions THEN
            is_changed := true;
            RETURN;
        END IF;
    END IF;
    -- One row is locked, compared and written by one statement: after a wait PostgreSQL evaluates the condition again,
    -- for the new version. No column of a whole unique index may be among the changed ones: such an UPDATE takes the
    -- strongest row lock, and would wait for the insert of each row that refers to the job.
    IF p_job IS NOT NULL THEN
        new_job := jsonb_populate_record(NULL::runtime_jobs, p_job);
        UPDATE runtime_jobs t
           SET {{changes(runtime_jobs, new_job, p_job)}}
         WHERE t.id = new_job.id AND (p_job_versions IS NULL OR t.xmin = p_job_versions[1]);
        IF NOT FOUND THEN
            IF p_job_versions IS NULL THEN
                RAISE EXCEPTION 'runtime_jobs: updated 0 of 1 rows.';
            END IF;
            is_changed := true;
            RETURN;
        END IF;
    END IF;
    IF p_lease IS NOT NULL THEN
        new_lease := jsonb_populate_record(NULL::runtime_worker_leases, p_lease);
        UPDATE runtime_worker_leases t
           SET {{changes(runtime_worker_leases, new_lease, p_lease)}}
         WHERE t.id = new_lease.id AND (p_lease_versions IS NULL OR t.xmin = p_lease_versions[1]);
        IF NOT FOUND THEN
            IF p_lease_versions IS NULL THEN
                RAISE EXCEPTION 'runtime_worker_leases: updated 0 of 1 rows.';
            END IF;
            RAISE EXCEPTION 'The lease has changed.' USING ERRCODE = 'OC001';  -- the job may be written already
        END IF;
    END IF;
    -- Under the locks. Time changes no version.
    IF p_live_until <= clock_timestamp() THEN
        RAISE EXCEPTION 'A lease has expired.' USING ERRCODE = 'OC001';
    END IF;

    IF p_new_jobs IS NOT NULL THEN
        WITH made AS (
            INSERT INTO runtime_jobs ({{inserted(runtime_jobs)}})
            SELECT {{values(runtime_jobs, v)}}
              FROM json_populate_recordset(NULL::runtime_jobs, p_new_jobs) v
            RETURNING id, job_ulid, lane_id, state, created_at)
        SELECT array_agg(job_ulid::text), array_agg(id),
               entered || array_agg(id) FILTER (WHERE state = 'queued' AND lane_id IS NOT NULL),
               entered_lanes || array_agg(lane_id::bigint) FILTER (WHERE state = 'queued' AND lane_id IS NOT NULL),
               entered_at || array_agg(created_at) FILTER (WHERE state = 'queued' AND lane_id IS NOT NULL),
               kept || array_agg(lane_id::bigint) FILTER (WHERE state = 'blocked' AND lane_id IS NOT NULL)
          INTO job_names, job_keys, entered, entered_lanes, entered_at, kept FROM made;
    END IF;
    IF p_new_leases IS NOT NULL THEN
        WITH made AS (
            INSERT INTO runtime_worker_leases ({{inserted(runtime_worker_leases)}})
            SELECT {{values(runtime_worker_leases, v)}}
              FROM json_populate_recordset(NULL::runtime_worker_leases, p_new_leases) v
            RETURNING id, lease_ulid)
        SELECT array_agg(lease_ulid::text), array_agg(id) INTO lease_names, lease_keys FROM made;
    END IF;
    IF p_jobs IS NOT NULL THEN
        UPDATE runtime_jobs t
           SET {{changes(runtime_jobs, v, e)}}
          FROM jsonb_array_elements(p_jobs) e CROSS JOIN LATERAL jsonb_to_record(e) AS v({{record(runtime_jobs)}})
         WHERE t.id = v.id;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> jsonb_array_length(p_jobs) THEN
            RAISE EXCEPTION 'runtime_jobs: updated % of % rows.', written, jsonb_array_length(p_jobs);
        END IF;
    END IF;
    IF p_leases IS NOT NULL THEN
        UPDATE runtime_worker_leases t
           SET {{changes(runtime_worker_leases, v, e)}}
          FROM jsonb_array_elements(p_leases) e
         CROSS JOIN LATERAL jsonb_to_record(e) AS v({{record(runtime_worker_leases)}})
         WHERE t.id = v.id;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> jsonb_array_length(p_leases) THEN
            RAISE EXCEPTION 'runtime_worker_leases: updated % of % rows.', written, jsonb_array_length(p_leases);
        END IF;
    END IF;
    IF p_event IS NOT NULL THEN
        new_event := json_populate_record(NULL::runtime_job_events, p_event);
        INSERT INTO runtime_job_events ({{inserted(runtime_job_events)}})
        VALUES ({{values(runtime_job_events, new_event)}});
    END IF;
    IF p_events IS NOT NULL THEN
        INSERT INTO runtime_job_events ({{inserted(runtime_job_events)}})
        SELECT {{values(runtime_job_events, v)}} FROM json_populate_recordset(NULL::runtime_job_events, p_events) v;
    END IF;
    {{rows(p_rows)}}

    IF NOT p_finish THEN
        RETURN;
    END IF;
    IF p_quotas IS NOT NULL THEN
        FOR quota IN SELECT * FROM json_to_recordset(p_quotas) AS v(
                org_slug text, jobs integer, is_enforced boolean, max_queued integer, per_minute integer, burst integer)
        LOOP
            PERFORM take_submit_quota(
                quota.org_slug, quota.jobs, quota.is_enforced, quota.max_queued, quota.per_minute, quota.burst);
        END LOOP;
    END IF;
    IF p_freed IS NOT NULL AND EXISTS (SELECT FROM lane_limit_slots WHERE job_id = ANY (p_freed)) THEN
        pools := release_and_enqueue(
            p_freed, coalesce(entered, '{}'), coalesce(entered_lanes, '{}'), coalesce(entered_at, '{}'), '{}');
    ELSIF entered IS NOT NULL THEN
        pools := enter_lanes(entered, entered_lanes, entered_at, '{}', '{}');
    END IF;
    IF kept IS NOT NULL THEN
        PERFORM require_lanes(kept);
    END IF;
END $$;

-- Inserts new idempotency keys, in the order of the array, which is that of all callers. Waits for a transaction that
-- inserts one of them. Rows: one if all keys are new; none if none of them is. OC001 if only some are: then nothing is
-- written. created_at is ISO 8601.
CREATE OR REPLACE FUNCTION bind_keys(p_keys json) RETURNS SETOF boolean LANGUAGE plpgsql AS $$
DECLARE
    bound integer;
BEGIN
    INSERT INTO idempotency_keys (principal, operation, key, fingerprint, result_id, created_at)
    SELECT k.principal, k.operation, k.key, k.fingerprint, k.result_id, k.created_at
      FROM json_to_recordset(p_keys) AS k(
           principal text, operation text, key text, fingerprint text, result_id text, created_at timestamptz)
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS bound = ROW_COUNT;
    IF bound = json_array_length(p_keys) THEN
        RETURN NEXT true;
    ELSIF bound > 0 THEN
        RAISE EXCEPTION 'some of the idempotency keys are bound already' USING ERRCODE = 'OC001';
    END IF;
END $$;

-- Ends a lease and claims the next job for its worker, in one transaction: write_changes, then claim for one job.
-- If a version differs, nothing is written and nothing is claimed. Arguments: first those of write_changes.
-- The worker is locked first, as in every claim: two calls of one worker would else wait for each other, one for the
-- worker and one for a lane that the other has released.
-- A job that holds slots of limits, or that is queued again, is only ended: the outcome is `separate`, and the caller claims
-- by a statement of its own. The release of slots locks lanes and queues, and a claim after it would lock others out of
-- order: with 8 groups of limited jobs, 160 completions that claimed met 49 deadlocks.
-- Rows: one, with the results of both functions; the columns of the claim are null if it found nothing.
CREATE OR REPLACE FUNCTION write_and_claim(
    p_job_ids bigint[], p_job_versions xid[], p_lease_ids bigint[], p_lease_versions xid[],
    p_live_until timestamptz, p_new_jobs json, p_new_leases json, p_event json, p_events json,
    p_job jsonb, p_jobs jsonb, p_lease jsonb, p_leases jsonb, p_rows json, p_finish boolean, p_quotas json,
    p_freed bigint[], p_entered bigint[], p_entered_lanes bigint[], p_entered_at timestamptz[],
    p_kept bigint[], p_worker bigint, p_session text, p_pool text, p_job_types text[], p_offers text[], p_isolation text,
    p_isolations text[], p_acknowledge boolean, p_lease_id text, p_event_ids text[], p_now timestamptz
) RETURNS TABLE (
    is_changed boolean, job_names text[], job_keys bigint[], lease_names text[], lease_keys bigint[], pools text[],
    outcome text, lease runtime_worker_leases, job runtime_jobs
) LANGUAGE plpgsql AS $$
DECLARE
    written record;
    claimed record;
    is_separate boolean := p_new_jobs IS NOT NULL OR p_entered IS NOT NULL
        OR EXISTS (SELECT FROM lane_limit_slots WHERE job_id = ANY (p_freed));
BEGIN
    IF NOT is_separate THEN
        PERFORM FROM workers_worker w WHERE w.id = p_worker FOR NO KEY UPDATE;
    END IF;
    written := write_changes(
        p_job_ids, p_job_versions, p_lease_ids, p_lease_versions, p_live_until, p_new_jobs, p_new_leases, p_event,
        p_events, p_job, p_jobs, p_lease, p_leases, p_rows, p_finish, p_quotas, p_freed, p_entered, p_entered_lanes,
        p_entered_at, p_kept);
    is_changed := written.is_changed;
    job_names := written.job_names;
    job_keys := written.job_keys;
    lease_names := written.lease_names;
    lease_keys := written.lease_keys;
    pools := written.pools;
    IF is_separate THEN
        outcome := 'separate';
    ELSIF NOT is_changed THEN
        SELECT c.* INTO claimed
          FROM claim(ARRAY[p_worker], ARRAY[p_session], p_pool, p_job_types, p_offers, p_isolation, p_isolations, 1, p_acknowledge,
                        ARRAY[p_lease_id], p_event_ids, p_now) c;
        outcome := claimed.outcome;
        lease := claimed.lease;
        job := claimed.job;
    END IF;
    RETURN NEXT;
END $$;
