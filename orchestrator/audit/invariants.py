"""Invariants of jobs, leases and events, each with SQL that finds the rows that break it."""

from leases.states import ENDED_BY_WORKER, OPEN, LeaseState
from orchestrator.audit.actions_invariants import ACTIONS_INVARIANTS
from orchestrator.audit.dependency_invariants import DEPENDENCY_INVARIANTS
from orchestrator.audit.evidence_invariants import EVIDENCE_INVARIANTS
from orchestrator.audit.housekeeping_invariants import HOUSEKEEPING_INVARIANTS
from orchestrator.audit.incident_invariants import INCIDENT_INVARIANTS
from orchestrator.audit.invariant import Invariant, listed
from orchestrator.audit.lane_invariants import LANE_INVARIANTS
from orchestrator.audit.log_invariants import LOG_INVARIANTS
from orchestrator.audit.pack_invariants import PACK_INVARIANTS
from orchestrator.audit.recurring_invariants import RECURRING_INVARIANTS
from orchestrator.audit.replay_invariants import REPLAY_INVARIANTS
from orchestrator.audit.storage_invariants import STORAGE_INVARIANTS
from orchestrator.audit.usage_invariants import USAGE_INVARIANTS
from orchestrator.audit.workflow_invariants import WORKFLOW_INVARIANTS
from runtime_jobs.states import (
    FINAL_STATES,
    LEASED_STATES,
    RESULT_FAILURES,
    RETRIED_AUTOMATICALLY,
    SETTLING_STATES,
    STATUS,
    TRANSITIONS,
    WAITING_STATES,
)

_EDGES = ", ".join(f"('{source}', '{target}')" for source, targets in TRANSITIONS.items() for target in sorted(targets))

JOB_INVARIANTS = (
    Invariant(
        "I1",
        "A job has at most one open lease.",
        f"SELECT job_ulid FROM runtime_worker_leases WHERE state IN ({listed(OPEN)}) GROUP BY 1 HAVING count(*) > 1",
    ),
    Invariant(
        "I2",
        "A job that waits, settles or has ended has no open lease.",
        f"""SELECT j.job_ulid FROM runtime_jobs j JOIN runtime_worker_leases l USING (job_ulid)
             WHERE l.state IN ({listed(OPEN)})
               AND j.state IN ({listed((*WAITING_STATES, *SETTLING_STATES, *FINAL_STATES))})""",
    ),
    Invariant(
        "I3",
        "A job that is leased or runs has an open lease.",
        f"""SELECT j.job_ulid FROM runtime_jobs j WHERE j.state IN ({listed(LEASED_STATES)}) AND NOT EXISTS
             (SELECT FROM runtime_worker_leases l WHERE l.job_ulid = j.job_ulid AND l.state IN ({listed(OPEN)}))""",
    ),
    Invariant(
        "I4",
        "The fence of a job is the highest fence and the number of its leases: 1 to n, each used once.",
        """SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN runtime_worker_leases l USING (job_ulid)
            GROUP BY j.job_ulid, j.fence HAVING j.fence <> coalesce(max(l.fence), 0) OR j.fence <> count(l.id)""",
    ),
    Invariant(
        "I5",
        "A job that has ended has exactly one final event; any other job has none.",
        f"""SELECT j.job_ulid FROM runtime_jobs j
              LEFT JOIN runtime_job_events e ON e.job_ulid = j.job_ulid AND e.to_state IN ({listed(FINAL_STATES)})
             GROUP BY j.job_ulid, j.state
            HAVING count(e.id) <> CASE WHEN j.state IN ({listed(FINAL_STATES)}) THEN 1 ELSE 0 END""",
    ),
    Invariant(
        "I6",
        "The transitions in a job's event history form one path, which ends in its state.",
        """SELECT job_ulid FROM (SELECT job_ulid, from_state, lag(to_state) OVER (PARTITION BY job_ulid ORDER BY seq) p
              FROM runtime_job_events WHERE to_state IS NOT NULL) x WHERE from_state IS DISTINCT FROM p
           UNION
           SELECT j.job_ulid FROM runtime_jobs j WHERE j.state IS DISTINCT FROM (SELECT to_state
              FROM runtime_job_events e WHERE e.job_ulid = j.job_ulid AND to_state IS NOT NULL
             ORDER BY seq DESC LIMIT 1)""",
    ),
    Invariant(
        "I7",
        "Each transition is one of the table of transitions.",
        f"""SELECT job_ulid FROM runtime_job_events WHERE to_state IS NOT NULL
               AND NOT (from_state IS NULL AND to_state IN ({listed(WAITING_STATES)}))
               AND (coalesce(from_state, '-'), to_state) NOT IN ({_EDGES})""",
    ),
    Invariant(
        "I8",
        "Events are numbered 1 to n without a gap, and n is the event count of the job.",
        """SELECT job_ulid FROM runtime_job_events GROUP BY 1 HAVING max(seq) <> count(*) OR min(seq) <> 1
           UNION
           SELECT j.job_ulid FROM runtime_jobs j
            WHERE event_seq <> (SELECT count(*) FROM runtime_job_events e WHERE e.job_ulid = j.job_ulid)""",
    ),
    Invariant(
        "I8h",
        "Each event has the hash of the event before, and the job the hash of its last event.",
        """SELECT job_ulid FROM (SELECT job_ulid, prev_hash,
                  lag(hash, 1, '') OVER (PARTITION BY job_ulid ORDER BY seq) before FROM runtime_job_events) x
            WHERE prev_hash <> before
           UNION
           SELECT j.job_ulid FROM runtime_jobs j WHERE j.event_head IS DISTINCT FROM (SELECT hash
              FROM runtime_job_events e WHERE e.job_ulid = j.job_ulid ORDER BY seq DESC LIMIT 1)""",
    ),
    Invariant(
        "I9",
        "A result was reported under the newest lease, before the lease expired. A late one was reported by the worker "
        "of that lease in the late window.",
        """SELECT e.job_ulid FROM runtime_job_events e JOIN runtime_jobs j USING (job_ulid)
             LEFT JOIN runtime_worker_leases l ON l.job_ulid = e.job_ulid AND l.fence = j.fence
            WHERE (e.to_state = 'processing' OR (e.to_state = 'succeeded' AND e.from_state <> 'processing'))
              AND (l.id IS NULL OR e.fence <> j.fence OR e.worker_id IS DISTINCT FROM l.worker_id
                   OR CASE WHEN e.from_state = 'lost' THEN e.created_at >= coalesce(j.late_result_at, '-infinity')
                           ELSE l.state <> 'completed' OR e.created_at >= l.expires_at END)""",
    ),
    Invariant(
        "I9b",
        "A job whose result must be read succeeded after `processing` only, and any other job never was there.",
        """SELECT e.job_ulid FROM runtime_job_events e JOIN runtime_jobs j USING (job_ulid)
            WHERE (e.to_state = 'succeeded' AND (e.from_state = 'processing') <> j.needs_processing)
               OR (e.to_state = 'processing' AND NOT j.needs_processing)
               OR (e.to_state = 'lost' AND j.late_result_seconds = 0)""",
    ),
    Invariant(
        "I9c",
        "A job that was lost failed after its late window only, unless it was retried, and for the reason of its loss.",
        f"""SELECT e.job_ulid FROM runtime_job_events e JOIN runtime_jobs j USING (job_ulid)
              LEFT JOIN runtime_job_events lost ON lost.job_ulid = e.job_ulid AND lost.seq = e.seq - 1
             WHERE e.from_state = 'lost' AND e.to_state = 'failed'
               AND ((e.actor_kind = 'clock' AND e.created_at < coalesce(j.late_result_at, 'infinity'))
                    OR lost.event_type <> 'job.lost'
                    OR lost.payload_json ->> 'reason' IS DISTINCT FROM j.failure_reason)
            UNION
            SELECT job_ulid FROM runtime_jobs j
             WHERE failure_reason IN ({listed(RESULT_FAILURES)}) AND NOT EXISTS (SELECT FROM runtime_job_events e
               WHERE e.job_ulid = j.job_ulid AND e.from_state = 'processing' AND e.to_state = 'failed')""",
    ),
    Invariant(
        "I10",
        "A retry follows a failed or canceled job of the same root, and has the next attempt number.",
        f"""SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN runtime_jobs o ON o.job_ulid = j.retry_of_job_ulid
             WHERE j.retry_of_job_ulid IS NOT NULL AND (o.id IS NULL OR o.state NOT IN ({listed(FINAL_STATES)})
                OR o.state = 'succeeded' OR j.attempt <> o.attempt + 1 OR j.root_job_ulid <> o.root_job_ulid
                OR (j.retry_kind = 'automatic') <> (j.automatic_retries_spent > 0)
                OR (j.retry_kind = 'automatic' AND (o.state <> 'failed'
                    OR o.failure_reason NOT IN ({listed(sorted(RETRIED_AUTOMATICALLY))})
                    OR j.automatic_retries_spent <> o.automatic_retries_spent + 1)))""",
    ),
    Invariant(
        "I10b",
        "A job has no more automatic retries than its policy allows.",
        "SELECT job_ulid FROM runtime_jobs WHERE automatic_retries_spent > automatic_retries",
    ),
    Invariant(
        "I11",
        "A canceled job has a cancel request.",
        "SELECT job_ulid FROM runtime_jobs WHERE state = 'canceled' AND cancel_requested_at IS NULL",
    ),
    Invariant(
        "I12",
        "A job has no event after its final event.",
        """SELECT e.job_ulid FROM runtime_job_events e JOIN runtime_jobs j USING (job_ulid)
            WHERE j.finished_at IS NOT NULL AND e.created_at > j.finished_at""",
    ),
    Invariant(
        "I14",
        "A lease does not expire before its expiry time.",
        """SELECT job_ulid FROM runtime_worker_leases WHERE state = 'expired' AND completed_at < expires_at
           UNION
           SELECT job_ulid FROM runtime_worker_leases
            WHERE ended_reason = 'not_acknowledged' AND completed_at < expires_at
              AND NOT EXISTS (SELECT FROM runtime_job_events e WHERE e.job_ulid = runtime_worker_leases.job_ulid
                  AND e.event_type = 'lease.revoked' AND e.actor_kind = 'operator'
                  AND e.fence = runtime_worker_leases.fence)""",
    ),
    Invariant(
        "I15",
        "A lease that was never acknowledged did not outlive its acknowledgement window.",
        """SELECT job_ulid FROM runtime_worker_leases WHERE acknowledged_at IS NULL
              AND expires_at > leased_at + make_interval(secs => acknowledge_within_seconds)""",
    ),
    Invariant(
        "I16",
        "A lease is granted, acknowledged and ended in this order; its worker ends it before it expires.",
        f"""SELECT job_ulid FROM runtime_worker_leases WHERE acknowledged_at < leased_at
               OR completed_at < coalesce(acknowledged_at, leased_at)
               OR (state IN ({listed(ENDED_BY_WORKER)}) AND completed_at >= expires_at)""",
    ),
    Invariant(
        "I17",
        "The public status and the run of a job agree with its state and type.",
        """SELECT job_ulid FROM runtime_jobs WHERE (state = 'succeeded' AND needs_ingest) <> (status = 'uploaded')
               OR (state = 'succeeded' AND NOT needs_ingest) <> (status = 'succeeded')
               OR (ingest_run_id IS NOT NULL AND NOT needs_ingest)
               OR (ingest_run_id IS NOT NULL AND state <> 'succeeded')
               OR (state = 'succeeded' AND needs_ingest AND ingest_run_id IS NULL)""",
    ),
    Invariant(
        "I18",
        "The run of a job was uploaded under its last lease by the worker of that lease.",
        """SELECT j.job_ulid FROM runtime_jobs j JOIN ingest_runs r ON r.run_id = j.ingest_run_id
             LEFT JOIN runtime_worker_leases l ON l.job_ulid = j.job_ulid AND l.fence = j.fence
            WHERE r.job_id <> j.job_ulid OR r.org_slug <> j.org_slug
               OR r.worker_id IS DISTINCT FROM l.worker_id OR r.fence <> l.fence""",
    ),
    Invariant(
        "I22",
        "Every job was submitted or retries another job.",
        f"""SELECT job_ulid FROM runtime_jobs
             WHERE state NOT IN ({listed((*WAITING_STATES, *LEASED_STATES, *SETTLING_STATES, *FINAL_STATES))})
               OR (retry_of_job_ulid IS NULL AND root_job_ulid <> job_ulid)""",
    ),
    Invariant(
        "I25",
        "The chunks of a step are numbered without a gap up to the number of chunks of its log.",
        """SELECT job_ulid FROM runtime_job_log_chunks c LEFT JOIN step_logs l USING (job_ulid, step)
            GROUP BY job_ulid, step, chunk_count
           HAVING max(seq) + 1 - min(seq) <> count(*) OR max(seq) + 1 IS DISTINCT FROM chunk_count""",
    ),
    Invariant(
        "I26",
        "Only a job whose command failed has a failure explanation.",
        """SELECT job_ulid FROM runtime_failure_explanations JOIN runtime_jobs USING (job_ulid)
            WHERE failure_reason IS DISTINCT FROM 'command_failed'""",
    ),
    Invariant(
        "I27",
        "An artifact has a type and an address, and its job was leased at least once.",
        """SELECT job_ulid FROM runtime_job_artifacts JOIN runtime_jobs USING (job_ulid)
            WHERE type = '' OR uri = '' OR fence = 0""",
    ),
    # Foreign keys and a unique index would refuse these at once, for 6 % and 4 % of the cost of a lifecycle (ADR 57).
    Invariant(
        "I28",
        "An event belongs to a job, and a lease to a job and a worker.",
        """SELECT job_ulid FROM runtime_job_events e
            WHERE NOT EXISTS (SELECT FROM runtime_jobs j WHERE j.job_ulid = e.job_ulid)
           UNION
           SELECT job_ulid FROM runtime_worker_leases l
            WHERE NOT EXISTS (SELECT FROM runtime_jobs j WHERE j.job_ulid = l.job_ulid)
               OR NOT EXISTS (SELECT FROM workers_worker w WHERE w.worker_id = l.worker_id)""",
    ),
    Invariant(
        "I29",
        "An event has an id that no other event has.",
        "SELECT min(job_ulid) FROM runtime_job_events GROUP BY event_ulid HAVING count(*) > 1",
    ),
    Invariant(
        "I30",
        "The stored status of a job and of a lease follows from its state.",
        f"""SELECT job_ulid FROM runtime_jobs WHERE status IS DISTINCT FROM CASE
              WHEN state IN ({listed(state for state, word in STATUS.items() if word == "queued")}) THEN 'queued'
              WHEN state IN ({listed(state for state, word in STATUS.items() if word == "running")}) THEN 'running'
              WHEN state = 'succeeded' AND needs_ingest THEN 'uploaded' ELSE state END
           UNION
           SELECT job_ulid FROM runtime_worker_leases
            WHERE status IS DISTINCT FROM CASE WHEN state IN ({listed(OPEN)}) THEN 'open' ELSE state END""",
    ),
    # The triggers `guard_job` and `guard_lease` refuse these. The owner of the database can switch them off.
    Invariant(
        "I31",
        "A job has the columns that its state requires and no others, and its counts are within their limits.",
        f"""SELECT job_ulid FROM runtime_jobs
             WHERE state NOT IN ({listed(STATUS)})
                OR (finished_at IS NOT NULL) <> (state IN ({listed(FINAL_STATES)}))
                OR (failure_reason IS NOT NULL) <> (state IN ('failed', 'lost'))
                OR (failure_class IS NOT NULL) <> (state IN ('failed', 'lost'))
                OR (state = 'lost' AND (late_result_at IS NULL OR cancel_requested_at IS NOT NULL))
                OR (state = 'succeeded' AND needs_ingest AND ingest_run_id IS NULL)
                OR (state <> 'succeeded' AND ingest_run_id IS NOT NULL)
                OR (state = 'canceled' AND cancel_requested_at IS NULL)
                OR requeue_count > max_requeues OR automatic_retries_spent > automatic_retries
                OR least(requeue_count, max_requeues, release_count, automatic_retries_spent, automatic_retries,
                         attempt, timeout_seconds, lease_ttl_seconds, heartbeat_interval_seconds,
                         acknowledge_within_seconds, late_result_seconds, timeout_grace_seconds,
                         last_billed_minute) < 0""",
    ),
    Invariant(
        "I32",
        "A lease has a known state, has `completed_at` unless it is open, and was acknowledged if it is active.",
        f"""SELECT job_ulid FROM runtime_worker_leases
             WHERE state NOT IN ({listed(LeaseState.values)})
                OR (state IN ({listed(OPEN)})) <> (completed_at IS NULL)
                OR (state = 'active' AND acknowledged_at IS NULL)
                OR least(ttl_seconds, heartbeat_interval_seconds, acknowledge_within_seconds) < 0""",
    ),
)

INVARIANTS = (
    *JOB_INVARIANTS,
    *ACTIONS_INVARIANTS,
    *DEPENDENCY_INVARIANTS,
    *EVIDENCE_INVARIANTS,
    *HOUSEKEEPING_INVARIANTS,
    *INCIDENT_INVARIANTS,
    *RECURRING_INVARIANTS,
    *LANE_INVARIANTS,
    *LOG_INVARIANTS,
    *REPLAY_INVARIANTS,
    *PACK_INVARIANTS,
    *STORAGE_INVARIANTS,
    *USAGE_INVARIANTS,
    *WORKFLOW_INVARIANTS,
)
