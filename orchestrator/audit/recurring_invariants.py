"""Invariants of schedules and bulk actions: one job for each time, and counters that are those of the rows."""

from orchestrator.audit.invariant import Invariant

RECURRING_INVARIANTS = (
    Invariant(
        "S1",
        "A job was submitted for one time of a schedule.",
        """SELECT job_ulid FROM schedule_ticks WHERE job_ulid IS NOT NULL GROUP BY job_ulid HAVING count(*) > 1""",
    ),
    Invariant(
        "S2",
        "A time of a schedule has a job exactly if one was submitted.",
        """SELECT s.schedule_ulid || ' ' || t.due_at FROM schedule_ticks t JOIN schedules s ON s.id = t.schedule_id
            WHERE (t.job_ulid IS NOT NULL) <> (t.outcome = 'submitted')""",
    ),
    Invariant(
        "B1",
        "The counters of a bulk action are those of its targets.",
        """SELECT a.bulk_action_ulid FROM bulk_actions a LEFT JOIN bulk_targets t ON t.bulk_action_id = a.id
            GROUP BY a.id
           HAVING (a.total, a.done, a.refused) <> (count(t.id), count(t.id) FILTER (WHERE t.outcome = 'done'),
                                                   count(t.id) FILTER (WHERE t.outcome = 'refused'))
              AND (a.finished_at IS NULL OR count(t.id) = a.total)""",
    ),
    Invariant(
        "B2",
        "A completed bulk action has no pending target.",
        """SELECT a.bulk_action_ulid FROM bulk_actions a
            WHERE a.status = 'completed'
              AND EXISTS (SELECT FROM bulk_targets t WHERE t.bulk_action_id = a.id AND t.outcome = 'pending')""",
    ),
)
