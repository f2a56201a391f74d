"""Job updates between processes: the ids of followed jobs that changed, announced with NOTIFY after the commit.

A job changes if its log grows, if a step begins or ends, and if it ends. An announcement is a hint and may be lost.
Every subscriber therefore also polls the database at intervals.
"""

from typing import Any

from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.pubsub.announcer import Announcer
from orchestrator.pubsub.followed_jobs import notify_followers
from runtime_jobs.models import Job

CHANNEL = "job_updates"  # the payload: job ids, separated by commas
# Seconds at least between two announcements of a process. A follower sees a chunk within a tenth of a second.
ANNOUNCE_INTERVAL = 0.02
IDS_PER_PAYLOAD = 200  # 31 bytes each; PostgreSQL accepts payloads below 8,000 bytes


@release_connection_after
def send_job_ids(job_ids: list[str]) -> None:
    """Notify every process of changed jobs that are followed, with as many notifications as their ids need."""
    for start in range(0, len(job_ids), IDS_PER_PAYLOAD):
        notify_followers(CHANNEL, job_ids[start : start + IDS_PER_PAYLOAD])


def parse_job_ids(payload: str) -> list[str]:
    """Return the job ids of an announcement's payload."""
    return payload.split(",")


def announce_end(*, uow: UnitOfWork, job: Job, **_: Any) -> None:
    """Announce the end of a job after the commit (`job_ended`)."""
    uow.after_commit(announcer.announce, job.job_ulid)


announcer = Announcer("job-updates", send_job_ids, interval=ANNOUNCE_INTERVAL)
