"""Job updates between processes: the ids of jobs whose log grew or that ended, announced with NOTIFY after the commit.

An announcement is a hint and may be lost. Every subscriber therefore also polls the database at intervals.
"""

from orchestrator.notifications.announcer import Announcer
from orchestrator.notifications.listener import send_notification

CHANNEL = "job_updates"  # the payload: job ids, separated by commas
ANNOUNCE_INTERVAL = 0.1  # seconds at least between two announcements of a process: enough for any number of chunks
IDS_PER_PAYLOAD = 200  # 31 bytes each; PostgreSQL accepts payloads below 8,000 bytes


def send_job_ids(job_ids: list[str]) -> None:
    """Notify every process of changed jobs, with as many notifications as their ids need."""
    for start in range(0, len(job_ids), IDS_PER_PAYLOAD):
        send_notification(CHANNEL, ",".join(job_ids[start : start + IDS_PER_PAYLOAD]))


def parse_job_ids(payload: str) -> list[str]:
    """Return the job ids of an announcement's payload."""
    return payload.split(",")


announcer = Announcer("job-updates", send_job_ids, interval=ANNOUNCE_INTERVAL)
