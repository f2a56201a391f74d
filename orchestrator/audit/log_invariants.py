"""Invariants of the logs of steps."""

from orchestrator.audit.invariant import Invariant, listed
from runtime_jobs.states import ENDED_STEP_STATUSES

LOG_INVARIANTS = (
    Invariant(
        "I40",
        "The length of a log is that of its object and of its chunks.",
        """SELECT l.job_ulid FROM step_logs l
             LEFT JOIN (SELECT job_ulid, step, sum(octet_length(chunk)) AS size
                          FROM runtime_job_log_chunks GROUP BY job_ulid, step) c USING (job_ulid, step)
            WHERE l.stored_bytes <> l.object_bytes + coalesce(c.size, 0)""",
    ),
    Invariant(
        "I41",
        "The chunks that wait are those that the log counts, and none waits after the end of the step.",
        """SELECT l.job_ulid FROM step_logs l
             LEFT JOIN (SELECT step_log_id, count(*) AS number, sum(size) AS size, min(seq) AS first
                          FROM step_log_waiting_chunks GROUP BY step_log_id) w ON w.step_log_id = l.id
            WHERE l.waiting_count <> coalesce(w.number, 0) OR l.waiting_bytes <> coalesce(w.size, 0)
               OR w.first <= l.next_seq OR (w.number > 0 AND l.closed_at IS NOT NULL)""",
    ),
    Invariant(
        "I42",
        "The log of an ended step is closed, and the step names the object of its log.",
        f"""SELECT s.job_ulid FROM runtime_job_steps s JOIN step_logs l ON l.job_ulid = s.job_ulid AND l.step = s.index
             WHERE (s.status IN ({listed(ENDED_STEP_STATUSES)}) AND l.closed_at IS NULL)
                OR (coalesce(s.log_object_key, ''), s.log_byte_count) <> (l.object_key, l.object_bytes)""",
    ),
)
