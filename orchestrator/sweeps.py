"""One round of the clock: find what time has caused, and call the verb for each job. Finding takes no lock."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.db import Error
from django.db.models import Q, QuerySet

from leases.models import Lease
from orchestrator import lifecycle
from orchestrator.lifecycle.by_clock import PREPARING_SECONDS, TIMEOUT_GRACE_SECONDS, UPLOADING_SECONDS
from orchestrator.models import WebhookDelivery
from runtime_jobs.clock import database_time
from runtime_jobs.models import IdempotencyKey, Job
from runtime_jobs.states import HELD, JobState
from runtime_jobs.trouble import go_past

log = logging.getLogger(__name__)

BATCH = 200
KEYS_KEPT = timedelta(days=2)
DELIVERIES_KEPT = timedelta(days=30)  # GitHub sends one again for three days at most


def sweep(*, now: datetime | None = None) -> int:
    """Do everything that is due. Returns how many jobs were changed; one job's trouble does not stop the others."""
    at = now or database_time()
    return (
        _each(lifecycle.force_cancel, _overdue_cancels(at), now)
        + _each(lifecycle.expire, _dead_leases(at), now)
        + _each(lifecycle.time_out, _overdue_phases(at), now)
        + lifecycle.follow_ends(most=BATCH)
    )


def _dead_leases(at: datetime) -> Iterable[str]:
    return list(Lease.objects.open().filter(expires_at__lte=at).values_list("job__job_ulid", flat=True)[:BATCH])


def _overdue_cancels(at: datetime) -> Iterable[str]:
    return list(_held().filter(cancel_deadline_at__lte=at).values_list("job_ulid", flat=True)[:BATCH])


def _overdue_phases(at: datetime) -> Iterable[str]:
    """A rough net; the verb looks closely, under the lock."""
    preparing = Q(
        state__in=[JobState.STARTING, JobState.CHECKING_OUT], started_at__lt=at - timedelta(seconds=PREPARING_SECONDS)
    )
    executing = Q(state=JobState.EXECUTING, executing_at__lt=at - timedelta(seconds=TIMEOUT_GRACE_SECONDS))
    uploading = Q(state=JobState.UPLOADING, phase_at__lt=at - timedelta(seconds=UPLOADING_SECONDS))
    suspects = _held().filter(preparing | executing | uploading)
    return [job.job_ulid for job in suspects.iterator() if lifecycle.overdue(job, at) is not None]


def _held() -> QuerySet[Job]:
    return Job.objects.filter(state__in=HELD)


def _each(act: Callable[..., Job | None], job_ulids: Iterable[str], now: datetime | None) -> int:
    changed = 0
    for job_ulid in job_ulids:
        try:
            changed += act(job_ulid=job_ulid, now=now) is not None
        except Error as error:
            go_past(error, log, "%s of %s failed; the next round tries again", act.__name__, job_ulid)
    return changed


def forget_old_keys(*, now: datetime | None = None) -> int:
    """Drop idempotency keys that nobody repeats any more."""
    old = IdempotencyKey.objects.filter(created_at__lt=(now or database_time()) - KEYS_KEPT)
    return old.delete()[0]


def forget_old_deliveries(*, now: datetime | None = None) -> int:
    """Drop what came through webhooks long ago. The same event would make a run again."""
    old = WebhookDelivery.objects.filter(received_at__lt=(now or database_time()) - DELIVERIES_KEPT)
    return old.delete()[0]
