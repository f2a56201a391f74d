-- The store of a unit of work: one statement compares versions, writes rows and events, and updates the lanes
-- (write_changes_v2). Advisory locks and the order of all locks: leases/advisory_locks.py. Design: docs/adr/0053.
--
-- The plans are generic and use indexes: a custom plan would be made at each call, and statistics of small, busy tables
-- are stale. json_to_recordset is estimated at 100 rows, for which a join would read a whole table.

-- Activates queues whose lanes have jobs to serve (again): activate_queues_v1 without NOTIFY. Returns their pools.
-- NOTIFY takes a lock of the whole cluster until the commit is flushed. So the caller announces the pools afterwards, by
-- a transaction of its own (docs/adr/0059). No pool is returned for a job that joins others in a lane.
-- p_limits: limits that no longer block.
CREATE OR REPLACE FUNCTION activate_queues_v2(p_queues bigint[], p_limits bigint[]) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    freed bigint[] := '{}';
    pools text[] := '{}';
    pool_name text;
BEGIN
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        PERFORM pg_advisory_xact_lock_shared(6, (item.id & 2147483647)::integer);
    END LOOP;
    PERFORM raise_share_floor_v1(p_queues);
    IF p_limits <> '{}' THEN
        -- One statement locks the queues of both kinds in the order of keys; two statements met deadlocks.
        SELECT coalesce(array_agg(id::bigint) FILTER (WHERE is_freed), '{}') INTO freed FROM (
            SELECT id, blocked_by = ANY (p_limits) AS is_freed
              FROM lane_queues
             WHERE blocked_by = ANY (p_limits) OR id = ANY (p_queues)
             ORDER BY id FOR NO KEY UPDATE) q;
        UPDATE lane_queues SET blocked_by = NULL, eligible_at = NULL WHERE id = ANY (freed);
        SELECT coalesce(array_agg(DISTINCT pool::text), '{}') INTO pools
          FROM lane_queues WHERE id = ANY (freed) AND head_id IS NOT NULL;
    END IF;
    FOR item IN SELECT DISTINCT id FROM unnest(p_queues) AS id ORDER BY id LOOP
        UPDATE lane_queues q
           SET head_id = head.head_id, head_at = head.head_at,
               rank = queue_rank_v2(q.pool, q.org_slug, head.head_at),
               tier = queue_tier_v2(q.pool, q.priority, head.head_at, q.served_at)
          FROM (SELECT head_id, head_at FROM lanes
                 WHERE queue_id = item.id AND head_id IS NOT NULL AND blocked_by IS NULL
                 ORDER BY head_at, head_id LIMIT 1) head
         WHERE q.id = item.id AND (q.head_id IS NULL OR q.head_id > head.head_id)
        RETURNING CASE WHEN q.blocked_by IS NULL THEN q.pool END INTO pool_name;
        IF NOT FOUND THEN
            -- The queue has an older head. If that was claimed, or excludes workers, nothing has announced the others.
            SELECT q.pool INTO pool_name FROM lane_queues q JOIN runtime_jobs head ON head.id = q.head_id
             WHERE q.id = item.id AND q.blocked_by IS NULL AND (head.state <> 'queued' OR head.excluded_workers <> '{}');
        END IF;
        IF pool_name IS NOT NULL THEN
            pools := pools || pool_name;
        END IF;
    END LOOP;
    RETURN pools;
END $$;

-- Puts waiting jobs into their lanes: the first three arrays run parallel. Activates what that makes servable.
-- Ends absences that finalize_claim_v2 records, so the locks of those facts are held, shared, until commit.
-- p_queues, p_limits: further queues to activate, and limits that no longer block. Returns the pools to announce.
CREATE OR REPLACE FUNCTION enter_lanes_v2(
    p_jobs bigint[], p_lanes bigint[], p_created_ats timestamptz[], p_queues bigint[], p_limits bigint[]
) RETURNS text[] LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    the_queue bigint;
    touched bigint[] := p_queues;
    pools text[] := '{}';
    pool_name text;
BEGIN
    -- Lock all lanes before the first row of one: the order of advisory_locks.py.
    FOR item IN SELECT DISTINCT lane AS id FROM unnest(p_lanes) AS lane ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(7, (item.id & 2147483647)::integer);
    END LOOP;
    -- Most jobs enter a lane that has older ones: then no row is written and no queue is read.
    FOR item IN
        SELECT lane AS id, min(job) AS job, min(created_at) AS created_at
          FROM unnest(p_lanes, p_jobs, p_created_ats) AS entered(lane, job, created_at) GROUP BY lane ORDER BY lane
    LOOP
        UPDATE lanes l
           SET scan_from = least(l.scan_from, item.job), head_id = least(l.head_id, item.job),
               head_at = least(l.head_at, item.created_at), idle_since = NULL
         WHERE l.id = item.id AND (l.head_id IS NULL OR l.head_id > item.job OR l.scan_from > item.job)
        RETURNING CASE WHEN l.blocked_by IS NULL THEN l.queue_id END INTO the_queue;
        IF FOUND THEN
            IF the_queue IS NOT NULL THEN
                touched := touched || the_queue;
            END IF;
            CONTINUE;
        END IF;
        PERFORM FROM lanes WHERE id = item.id;
        IF NOT FOUND THEN  -- as in require_lanes_v1
            RAISE EXCEPTION 'Lane % was pruned.', item.id USING ERRCODE = 'serialization_failure';
        END IF;
        -- The job waits behind a head that was claimed or that excludes workers, or is that head, returned: the lane
        -- is among those to serve, but no worker was notified of it.
        SELECT q.pool INTO pool_name
          FROM lanes l JOIN lane_queues q ON q.id = l.queue_id JOIN runtime_jobs head ON head.id = l.head_id
         WHERE l.id = item.id AND l.blocked_by IS NULL AND q.blocked_by IS NULL
           AND (head.state <> 'queued' OR head.id = item.job OR head.excluded_workers <> '{}');
        IF FOUND THEN
            pools := pools || pool_name;
        END IF;
    END LOOP;
    IF touched <> '{}' OR p_limits <> '{}' THEN
        pools := pools || activate_queues_v2(touched, p_limits);
    END IF;
    RETURN pools;
END $$;

-- Releases the slots of jobs that are no longer leased (p_freed), and then does what enter_lanes_v2 does. Returns the
-- pools to announce. As release_and_enqueue_v1, but without NOTIFY.
CREATE OR REPLACE FUNCTION release_and_enqueue_v2(
    p_freed bigint[], p_jobs bigint[], p_lanes bigint[], p_created_ats timestamptz[]
) RETURNS text[] LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    item record;
    freed bigint[];
    lowered bigint[];
    unblocked bigint[] := '{}';
    changed bigint[];
    touched bigint[] := '{}';
BEGIN
    FOR item IN SELECT DISTINCT limit_id AS id FROM lane_limit_slots WHERE job_id = ANY (p_freed) ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(8, (item.id & 2147483647)::integer);
    END LOOP;
    -- A limit that was lowered below the jobs that run: a job that ends hands its slot to one whose slot is retired.
    SELECT coalesce(array_agg(id::bigint ORDER BY id), '{}') INTO lowered FROM (
        SELECT id FROM lane_limits l
         WHERE id IN (SELECT limit_id FROM lane_limit_slots WHERE job_id = ANY (p_freed))
           AND EXISTS (SELECT FROM lane_limit_slots s WHERE s.limit_id = l.id AND s.retired)
         ORDER BY id FOR NO KEY UPDATE) l;
    DELETE FROM lane_limit_slots WHERE job_id = ANY (p_freed) AND retired;
    WITH given AS (UPDATE lane_limit_slots SET job_id = NULL WHERE job_id = ANY (p_freed) RETURNING limit_id)
    SELECT coalesce(array_agg(DISTINCT limit_id::bigint), '{}') INTO freed FROM given;
    FOR item IN SELECT id FROM unnest(lowered) AS id LOOP
        PERFORM reassign_overflow_slots_v1(item.id);
    END LOOP;
    FOR item IN SELECT DISTINCT id FROM unnest(freed) AS id ORDER BY 1 LOOP
        UPDATE lane_limits SET waiting = false WHERE id = item.id AND waiting;
        IF FOUND THEN
            unblocked := unblocked || item.id;
        END IF;
    END LOOP;
    IF unblocked <> '{}' THEN
        -- The locks of enter_lanes_v2 come before those of the rows.
        PERFORM require_lanes_v1(p_lanes);
        SELECT coalesce(array_agg(id::bigint), '{}') INTO changed FROM lanes WHERE blocked_by = ANY (unblocked);
        PERFORM FROM lanes WHERE id = ANY (changed || p_lanes) ORDER BY id FOR NO KEY UPDATE;
        UPDATE lanes SET blocked_by = NULL, eligible_at = NULL WHERE blocked_by = ANY (unblocked);
        SELECT coalesce(array_agg(DISTINCT queue_id::bigint), '{}') INTO touched
          FROM lanes WHERE id = ANY (changed) AND head_id IS NOT NULL AND blocked_by IS NULL;
    END IF;
    RETURN enter_lanes_v2(p_jobs, p_lanes, p_created_ats, touched, unblocked);
END $$;

-- Writes the changes of one operation, or nothing if a row has another version than the operation has read.
--
-- p_job_ids, p_job_versions: changed jobs that were read without a lock, in the order of their keys, and their xmin.
-- p_lease_ids, p_lease_versions: likewise leases. Null if the caller holds the locks.
-- p_live_until: the first expiry of a lease that the operation took for live.
-- p_new_jobs, p_new_leases, p_events, p_jobs, p_leases: JSON arrays of objects with columns. p_event, p_job, p_lease:
-- the object instead, if there is only one. A changed job has priority and lane_id only if both change.
-- p_with_run: a changed job has a run.
-- p_finish: also update quotas and lanes, as the last statement of the transaction. p_quotas: JSON, the arguments of
-- take_submit_quota_v1, ordered by organization. p_freed: jobs that are no longer leased. p_entered, p_entered_lanes,
-- p_entered_at: jobs that wait again. p_kept: lanes of jobs that are blocked. New jobs need none of the last two.
-- Returns whether a version differs, the keys of new rows by their public ids, and the pools to announce after the commit.
-- Raises OC001 instead if a difference was found after a write.
CREATE OR REPLACE FUNCTION write_changes_v2(
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
                heartbeat_interval_seconds, acknowledge_within_seconds, least_isolation, state, fence, requeue_count,
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
                heartbeat_interval_seconds, acknowledge_within_seconds, least_isolation, state, fence, requeue_count,
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
                   result = v.result, priority = coalesce(v.priority, t.priority),
                   lane_id = coalesce(v.lane_id, t.lane_id), ingest_run_id = v.ingest_run_id
              FROM json_to_recordset(p_jobs) AS v(
                   id bigint, state varchar, phase_at timestamptz, started_at timestamptz, executing_at timestamptz,
                   finished_at timestamptz, updated_at timestamptz, event_seq bigint, event_head varchar,
                   progress jsonb, log_bytes bigint, requeue_count smallint, release_count smallint,
                   excluded_workers varchar[], cancel_requested_at timestamptz, cancel_reason varchar,
                   cancel_actor varchar, cancel_message text, cancel_deadline_at timestamptz, failure_reason varchar,
                   failure_class varchar, failure_message text, exit_code integer, result jsonb, priority integer,
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
                   result = v.result, priority = coalesce(v.priority, t.priority),
                   lane_id = coalesce(v.lane_id, t.lane_id)
              FROM json_to_recordset(p_jobs) AS v(
                   id bigint, state varchar, phase_at timestamptz, started_at timestamptz, executing_at timestamptz,
                   finished_at timestamptz, updated_at timestamptz, event_seq bigint, event_head varchar,
                   progress jsonb, log_bytes bigint, requeue_count smallint, release_count smallint,
                   excluded_workers varchar[], cancel_requested_at timestamptz, cancel_reason varchar,
                   cancel_actor varchar, cancel_message text, cancel_deadline_at timestamptz, failure_reason varchar,
                   failure_class varchar, failure_message text, exit_code integer, result jsonb, priority integer,
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
            PERFORM take_submit_quota_v1(
                quota.org_slug, quota.jobs, quota.is_enforced, quota.max_queued, quota.per_minute, quota.burst);
        END LOOP;
    END IF;
    IF p_freed IS NOT NULL AND EXISTS (SELECT FROM lane_limit_slots WHERE job_id = ANY (p_freed)) THEN
        pools := release_and_enqueue_v2(
            p_freed, coalesce(entered, '{}'), coalesce(entered_lanes, '{}'), coalesce(entered_at, '{}'));
    ELSIF entered IS NOT NULL THEN
        pools := enter_lanes_v2(entered, entered_lanes, entered_at, '{}', '{}');
    END IF;
    IF kept IS NOT NULL THEN
        PERFORM require_lanes_v1(kept);
    END IF;
END $$;
