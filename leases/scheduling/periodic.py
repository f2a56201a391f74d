"""Periodic work on lanes and queues, called by the scheduler process (and by a claim that finds something due)."""

from math import inf

from django.db import connection

# Pools with a job to serve in which the rate of the pool, or of the job type, lets one start. Rates of organizations
# and projects record that time at their queues and lanes.
_NOTIFY_THROTTLED_POOLS = """
SELECT pg_notify('lanes', pool) FROM (
    SELECT DISTINCT q.pool
      FROM lane_limits m
      JOIN queue_heads q ON m.scope = 'job_type' OR q.pool = m.key
      JOIN lane_profiles p ON p.id = q.profile_id AND (m.scope = 'pool' OR p.job_type = m.key)
     WHERE m.scope IN ('pool', 'job_type') AND m.org_slug = '' AND m.per_hour IS NOT NULL
       AND q.head_id IS NOT NULL AND q.blocked_by IS NULL
       AND bucket_tokens(m.per_hour, m.burst, m.spent_until) > 0
       AND NOT EXISTS (SELECT FROM lane_limits paused WHERE paused.scope = m.scope AND paused.org_slug = ''
                          AND paused.key = m.key AND paused.kind = 'pause')) AS open"""
_NEXT_DUE = """
SELECT extract(epoch FROM least((SELECT min(eligible_at) FROM lane_heads WHERE eligible_at IS NOT NULL),
                                (SELECT min(eligible_at) FROM queue_heads WHERE eligible_at IS NOT NULL))
                          - clock_timestamp())::float8"""


def activate_due(*, limit: int = 200) -> int:
    """Activate up to `limit` lanes and queues each that were blocked until a time that has come; return how many."""
    return _call("SELECT activate_due_queues(%s)", limit)


def seconds_to_next_due() -> float:
    """Return the seconds until the next lane or queue is due, by the time of the database; infinite without one."""
    with connection.cursor() as cursor:
        cursor.execute(_NEXT_DUE)
        (seconds,) = cursor.fetchone()
    return inf if seconds is None else float(seconds)


def apply_aging(*, limit: int = 500) -> int:
    """Raise the tiers of up to `limit` queues whose jobs have waited; return how many were written."""
    return _call("SELECT apply_aging(%s)", limit)


def stale_lanes(*, limit: int = 50) -> list[int]:
    """Return ids of lanes whose head is no longer queued: claims had no time to advance them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT stale_lanes(%s)", [limit])
        return [row[0] for row in cursor.fetchall()]


def advance_cursor(lane: int) -> None:
    """Advance the head and scan position of one lane. Waits for the lane's lock, so use a transaction of its own."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT advance_lane_cursor(%s)", [lane])


def notify_throttled_pools() -> None:
    """Notify waiting workers of pools in which the rate of a pool or job type lets a job start again."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTIFY_THROTTLED_POOLS)


def _call(sql: str, value: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, [value])
        return int(cursor.fetchone()[0])
