"""The jobs whose logs are followed, in a table that all processes share.

A process announces a change of a job only while some process follows it: NOTIFY takes a lock of the whole cluster. The
process that follows enters the job before it reads, and the process that appends asks after its commit. So whichever
comes first, the follower reads the change or is notified of it.
"""

from datetime import timedelta
from typing import Any, Final

from django.db import connection

FOLLOWED_FOR: Final = timedelta(seconds=60)  # a process renews its entries more often; see `log_hub.WATCH_INTERVAL`
# A process that adds many jobs removes what others have left.
_ENTER = """
WITH gone AS (
    DELETE FROM followed_jobs WHERE job_ulid = ANY (ARRAY(
        SELECT job_ulid FROM followed_jobs
         WHERE until < clock_timestamp() - interval '1 minute' AND job_ulid <> ALL (%(jobs)s::text[])
         LIMIT 100 FOR UPDATE SKIP LOCKED)))
INSERT INTO followed_jobs AS f (job_ulid, until)
SELECT job_ulid, clock_timestamp() + %(period)s::interval FROM unnest(%(jobs)s::text[]) job_ulid ORDER BY job_ulid
    ON CONFLICT (job_ulid) DO UPDATE SET until = greatest(f.until, excluded.until)"""
# The subquery is one snapshot after the commit of the change.
_NOTIFY = """
SELECT pg_notify(%s, string_agg(job_ulid, ',')) FROM followed_jobs
 WHERE job_ulid = ANY (%s::text[]) AND until > clock_timestamp() HAVING count(*) > 0"""


def keep_followed(job_ids: list[str]) -> None:
    """Ask all processes for announcements of these jobs for FOLLOWED_FOR."""
    values: Any = {"period": FOLLOWED_FOR, "jobs": sorted(set(job_ids))}
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, values)


def notify_followers(channel: str, job_ids: list[str]) -> None:
    """Notify every process of those of the jobs that are followed; without such a job nothing is sent."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTIFY, [channel, job_ids])
