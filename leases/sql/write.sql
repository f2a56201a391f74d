-- The store of a unit of work: one statement compares versions, writes rows and events, and updates the lanes
-- (write_changes). Advisory locks and the order of all locks: leases/advisory_locks.py. Design: docs/adr/0053.
--
-- The plans are generic and use indexes: a custom plan would be made at each call, and statistics of small, busy tables
-- are stale. json_to_recordset is estimated at 100 rows, for which a join would read a whole table.

-- Writes the changes of one operation, or nothing if a row has another version than the operation has read.
--
-- p_job_ids, p_job_versions: changed jobs that were read without a lock, in the order of their keys, and their xmin.
-- p_lease_ids, p_lease_versions: likewise leases. Null if the caller holds the locks.
-- p_live_until: the first expiry of a lease that the operation took for live.
-- p_new_jobs, p_new_leases, p_events, p_jobs, p_leases: JSON arrays of objects with columns. p_event, p_job, p_lease:
-- the object instead, if there is only one. A changed job has priority and lane_id only if both change.
-- p_with_run: a changed job has a run.
-- p_finish: also update quotas and lanes, as the last statement of the transaction. p_quotas: JSON, the arguments of
-- take_submit_quota, ordered by organization. p_freed: jobs that are no longer leased. p_entered, p_entered_lanes,
-- p_entered_at: jobs that wait again. p_kept: lanes of jobs that are blocked. New jobs need none of the last two.
-- Returns whether a version differs, the keys of new rows by their public ids, and the pools to announce after the commit.
-- Raises OC001 instead if a difference was found after a write.
CREATE OR REPLACE FUNCTION write_changes(
    p_job_ids bigint[], p_job_versions xid[], p_lease_ids bigint[], p_lease_versions xid[],
    p_live_until timestamptz, p_new_jobs json, p_new_leases json, p_event json, p_events json, p_job json, p_jobs json,
    p_with_run boolean, p_lease json, p_leases json, p_finish boolean, p_quotas json, p_freed bigint[],
    p_entered bigint[], p_entered_lanes bigint[], p_entered_at timestamptz[], p_kept bigint[],
    OUT is_changed boolean, OUT job_names text[], OUT job_keys bigint[], OUT lease_names text[], OUT lease_keys bigint[],
    OUT pools text[]
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
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
    -- for the new version. Each time there are two statements for jobs, because one that names a column of a unique key
    -- takes the strongest row lock (a trigger guards final states). It would wait for inserts of events of the job.
    IF p_job IS NOT NULL THEN
        new_job := json_populate_record(NULL::runtime_jobs, p_job);
        IF p_with_run THEN
            UPDATE runtime_jobs t
               SET state = new_job.state, phase_at = new_job.phase_at, started_at = new_job.started_at,
                   executing_at = new_job.executing_at, finished_at = new_job.finished_at,
                   updated_at = new_job.updated_at, event_seq = new_job.event_seq, event_head = new_job.event_head,
                   progress = new_job.progress, log_bytes = new_job.log_bytes, requeue_count = new_job.requeue_count,
                   release_count = new_job.release_count, excluded_workers = new_job.excluded_workers,
                   cancel_requested_at = new_job.cancel_requested_at, cancel_reason = new_job.cancel_reason,
                   cancel_actor = new_job.cancel_actor, cancel_message = new_job.cancel_message,
                   cancel_deadline_at = new_job.cancel_deadline_at, failure_reason = new_job.failure_reason,
                   failure_class = new_job.failure_class, failure_message = new_job.failure_message,
                   exit_code = new_job.exit_code, result = new_job.result,
                   late_result_at = new_job.late_result_at, last_billed_minute = new_job.last_billed_minute,
                   priority = coalesce(new_job.priority, t.priority), lane_id = coalesce(new_job.lane_id, t.lane_id),
                   ingest_run_id = new_job.ingest_run_id
             WHERE t.id = new_job.id AND (p_job_versions IS NULL OR t.xmin = p_job_versions[1]);
        ELSE
            UPDATE runtime_jobs t
               SET state = new_job.state, phase_at = new_job.phase_at, started_at = new_job.started_at,
                   executing_at = new_job.executing_at, finished_at = new_job.finished_at,
                   updated_at = new_job.updated_at, event_seq = new_job.event_seq, event_head = new_job.event_head,
                   progress = new_job.progress, log_bytes = new_job.log_bytes, requeue_count = new_job.requeue_count,
                   release_count = new_job.release_count, excluded_workers = new_job.excluded_workers,
                   cancel_requested_at = new_job.cancel_requested_at, cancel_reason = new_job.cancel_reason,
                   cancel_actor = new_job.cancel_actor, cancel_message = new_job.cancel_message,
                   cancel_deadline_at = new_job.cancel_deadline_at, failure_reason = new_job.failure_reason,
                   failure_class = new_job.failure_class, failure_message = new_job.failure_message,
                   exit_code = new_job.exit_code, result = new_job.result,
                   late_result_at = new_job.late_result_at, last_billed_minute = new_job.last_billed_minute,
                   priority = coalesce(new_job.priority, t.priority), lane_id = coalesce(new_job.lane_id, t.lane_id)
             WHERE t.id = new_job.id AND (p_job_versions IS NULL OR t.xmin = p_job_versions[1]);
        END IF;
        IF NOT FOUND THEN
            IF p_job_versions IS NULL THEN
                RAISE EXCEPTION 'runtime_jobs: updated 0 of 1 rows.';
            END IF;
            is_changed := true;
            RETURN;
        END IF;
    END IF;
    IF p_lease IS NOT NULL THEN
        new_lease := json_populate_record(NULL::runtime_worker_leases, p_lease);
        UPDATE runtime_worker_leases t
           SET state = new_lease.state, acknowledged_at = new_lease.acknowledged_at,
               last_heartbeat_at = new_lease.last_heartbeat_at, expires_at = new_lease.expires_at,
               completed_at = new_lease.completed_at, ended_reason = new_lease.ended_reason,
               final_digest = new_lease.final_digest
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
            INSERT INTO runtime_jobs (
                job_ulid, org_slug, project_slug, source_kind, repo_url, repo_owner, repo_name, git_ref, git_commit,
                pull_request_number, trigger_kind, trigger_actor, working_directory, command_json, timeout_seconds,
                allow_network, allow_exec, job_type, spec, result, priority, pool, lane_id, concurrency_key,
                limited_by_address, requirements, excluded_workers, payload_digest, correlation_id, source_address,
                max_requeues, automatic_retries, needs_ingest, complete_beats_cancel, lease_ttl_seconds,
                heartbeat_interval_seconds, acknowledge_within_seconds, late_result_seconds, needs_processing,
                timeout_grace_seconds, late_result_at, is_metered, last_billed_minute, least_isolation, state, fence,
                requeue_count,
                release_count, event_seq, event_head, progress, log_bytes, cancel_requested_at, cancel_reason,
                cancel_actor, cancel_message, cancel_deadline_at, ingest_run_id, failure_reason, failure_class,
                failure_message, exit_code, batch_id, root_job_ulid, retry_of_job_ulid, retry_kind, attempt, awaited,
                automatic_retries_spent, created_at, started_at, phase_at, executing_at, finished_at, updated_at)
            SELECT
                job_ulid, org_slug, project_slug, source_kind, repo_url, repo_owner, repo_name, git_ref, git_commit,
                pull_request_number, trigger_kind, trigger_actor, working_directory, command_json, timeout_seconds,
                allow_network, allow_exec, job_type, spec, result, priority, pool, lane_id, concurrency_key,
                limited_by_address, requirements, excluded_workers, payload_digest, correlation_id, source_address,
                max_requeues, automatic_retries, needs_ingest, complete_beats_cancel, lease_ttl_seconds,
                heartbeat_interval_seconds, acknowledge_within_seconds, late_result_seconds, needs_processing,
                timeout_grace_seconds, late_result_at, is_metered, last_billed_minute, least_isolation, state, fence,
                requeue_count,
                release_count, event_seq, event_head, progress, log_bytes, cancel_requested_at, cancel_reason,
                cancel_actor, cancel_message, cancel_deadline_at, ingest_run_id, failure_reason, failure_class,
                failure_message, exit_code, batch_id, root_job_ulid, retry_of_job_ulid, retry_kind, attempt, awaited,
                automatic_retries_spent, created_at, started_at, phase_at, executing_at, finished_at, updated_at
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
            INSERT INTO runtime_worker_leases (
                lease_ulid, job_ulid, worker_id, pool, state, fence, session, ttl_seconds, heartbeat_interval_seconds,
                acknowledge_within_seconds, leased_at, acknowledged_at, last_heartbeat_at, expires_at, completed_at,
                ended_reason, final_digest)
            SELECT
                lease_ulid, job_ulid, worker_id, pool, state, fence, session, ttl_seconds, heartbeat_interval_seconds,
                acknowledge_within_seconds, leased_at, acknowledged_at, last_heartbeat_at, expires_at, completed_at,
                ended_reason, final_digest
              FROM json_populate_recordset(NULL::runtime_worker_leases, p_new_leases) v
            RETURNING id, lease_ulid)
        SELECT array_agg(lease_ulid::text), array_agg(id) INTO lease_names, lease_keys FROM made;
    END IF;
    IF p_jobs IS NOT NULL THEN
        IF p_with_run THEN
            UPDATE runtime_jobs t
               SET state = v.state, phase_at = v.phase_at, started_at = v.started_at, executing_at = v.executing_at,
                   finished_at = v.finished_at, updated_at = v.updated_at, event_seq = v.event_seq,
                   event_head = v.event_head, progress = v.progress, log_bytes = v.log_bytes,
                   requeue_count = v.requeue_count, release_count = v.release_count,
                   excluded_workers = v.excluded_workers, cancel_requested_at = v.cancel_requested_at,
                   cancel_reason = v.cancel_reason, cancel_actor = v.cancel_actor, cancel_message = v.cancel_message,
                   cancel_deadline_at = v.cancel_deadline_at, failure_reason = v.failure_reason,
                   failure_class = v.failure_class, failure_message = v.failure_message, exit_code = v.exit_code,
                   result = v.result, late_result_at = v.late_result_at, last_billed_minute = v.last_billed_minute,
                   priority = coalesce(v.priority, t.priority),
                   lane_id = coalesce(v.lane_id, t.lane_id), ingest_run_id = v.ingest_run_id
              FROM json_to_recordset(p_jobs) AS v(
                   id bigint, state varchar, phase_at timestamptz, started_at timestamptz, executing_at timestamptz,
                   finished_at timestamptz, updated_at timestamptz, event_seq bigint, event_head varchar,
                   progress jsonb, log_bytes bigint, requeue_count smallint, release_count smallint,
                   excluded_workers varchar[], cancel_requested_at timestamptz, cancel_reason varchar,
                   cancel_actor varchar, cancel_message text, cancel_deadline_at timestamptz, failure_reason varchar,
                   failure_class varchar, failure_message text, exit_code integer, result jsonb,
                   late_result_at timestamptz, last_billed_minute integer, priority integer,
                   lane_id integer, ingest_run_id varchar)
             WHERE t.id = v.id;
        ELSE
            UPDATE runtime_jobs t
               SET state = v.state, phase_at = v.phase_at, started_at = v.started_at, executing_at = v.executing_at,
                   finished_at = v.finished_at, updated_at = v.updated_at, event_seq = v.event_seq,
                   event_head = v.event_head, progress = v.progress, log_bytes = v.log_bytes,
                   requeue_count = v.requeue_count, release_count = v.release_count,
                   excluded_workers = v.excluded_workers, cancel_requested_at = v.cancel_requested_at,
                   cancel_reason = v.cancel_reason, cancel_actor = v.cancel_actor, cancel_message = v.cancel_message,
                   cancel_deadline_at = v.cancel_deadline_at, failure_reason = v.failure_reason,
                   failure_class = v.failure_class, failure_message = v.failure_message, exit_code = v.exit_code,
                   result = v.result, late_result_at = v.late_result_at, last_billed_minute = v.last_billed_minute,
                   priority = coalesce(v.priority, t.priority),
                   lane_id = coalesce(v.lane_id, t.lane_id)
              FROM json_to_recordset(p_jobs) AS v(
                   id bigint, state varchar, phase_at timestamptz, started_at timestamptz, executing_at timestamptz,
                   finished_at timestamptz, updated_at timestamptz, event_seq bigint, event_head varchar,
                   progress jsonb, log_bytes bigint, requeue_count smallint, release_count smallint,
                   excluded_workers varchar[], cancel_requested_at timestamptz, cancel_reason varchar,
                   cancel_actor varchar, cancel_message text, cancel_deadline_at timestamptz, failure_reason varchar,
                   failure_class varchar, failure_message text, exit_code integer, result jsonb,
                   late_result_at timestamptz, last_billed_minute integer, priority integer,
                   lane_id integer)
             WHERE t.id = v.id;
        END IF;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> json_array_length(p_jobs) THEN
            RAISE EXCEPTION 'runtime_jobs: updated % of % rows.', written, json_array_length(p_jobs);
        END IF;
    END IF;
    IF p_leases IS NOT NULL THEN
        UPDATE runtime_worker_leases t
           SET state = v.state, acknowledged_at = v.acknowledged_at, last_heartbeat_at = v.last_heartbeat_at,
               expires_at = v.expires_at, completed_at = v.completed_at, ended_reason = v.ended_reason,
               final_digest = v.final_digest
          FROM json_to_recordset(p_leases) AS v(
               id bigint, state varchar, acknowledged_at timestamptz, last_heartbeat_at timestamptz,
               expires_at timestamptz, completed_at timestamptz, ended_reason varchar, final_digest varchar)
         WHERE t.id = v.id;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> json_array_length(p_leases) THEN
            RAISE EXCEPTION 'runtime_worker_leases: updated % of % rows.', written, json_array_length(p_leases);
        END IF;
    END IF;
    IF p_event IS NOT NULL THEN
        new_event := json_populate_record(NULL::runtime_job_events, p_event);
        INSERT INTO runtime_job_events (
            event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at, org_slug, job_type,
            correlation_id, worker_id, from_state, to_state, fence, prev_hash, hash)
        VALUES (
            new_event.event_ulid, new_event.job_ulid, new_event.seq, new_event.event_type, new_event.actor_kind,
            new_event.actor_id, new_event.payload_json, new_event.created_at, new_event.org_slug, new_event.job_type,
            new_event.correlation_id, new_event.worker_id, new_event.from_state, new_event.to_state, new_event.fence,
            new_event.prev_hash, new_event.hash);
    END IF;
    IF p_events IS NOT NULL THEN
        INSERT INTO runtime_job_events (
            event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at, org_slug, job_type,
            correlation_id, worker_id, from_state, to_state, fence, prev_hash, hash)
        SELECT
            event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at, org_slug, job_type,
            correlation_id, worker_id, from_state, to_state, fence, prev_hash, hash
          FROM json_populate_recordset(NULL::runtime_job_events, p_events) v;
    END IF;

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
    p_live_until timestamptz, p_new_jobs json, p_new_leases json, p_event json, p_events json, p_job json, p_jobs json,
    p_with_run boolean, p_lease json, p_leases json, p_finish boolean, p_quotas json, p_freed bigint[],
    p_entered bigint[], p_entered_lanes bigint[], p_entered_at timestamptz[], p_kept bigint[],
    p_worker bigint, p_session text, p_pool text, p_job_types text[], p_offers text[], p_isolation text,
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
        p_events, p_job, p_jobs, p_with_run, p_lease, p_leases, p_finish, p_quotas, p_freed, p_entered, p_entered_lanes, p_entered_at, p_kept);
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
          FROM claim(p_worker, p_session, p_pool, p_job_types, p_offers, p_isolation, p_isolations, 1, p_acknowledge,
                        ARRAY[p_lease_id], p_event_ids, p_now) c;
        outcome := claimed.outcome;
        lease := claimed.lease;
        job := claimed.job;
    END IF;
    RETURN NEXT;
END $$;
