-- Describes what leaves the installation, in one statement. The number of rows that it reads has a bound.
SELECT (SELECT beat_at FROM dispatch_position) AS beat_at,
       EXISTS (SELECT FROM webhooks WHERE status = 'active') AS is_used,
       (SELECT min(due_at) FROM (
            SELECT due_at
              FROM deliveries
             WHERE due_at <= %(due_before)s AND (claimed_until IS NULL OR claimed_until <= %(now)s)
             LIMIT %(max_count)s
        ) AS bounded) AS waiting_since,
       (SELECT count(*) FROM (
            SELECT FROM deliveries WHERE status = 'dead' LIMIT %(max_count)s + 1
        ) AS bounded) AS dead_letters,
       (SELECT count(*) FROM webhooks
         WHERE status IN ('paused', 'disabled') AND starts_with(updated_by, 'core:')) AS stopped_webhooks
