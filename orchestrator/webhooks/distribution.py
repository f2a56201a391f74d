"""Turns events into deliveries and notifications, in the transaction that moves the position in the feed.

So each event is turned exactly once, however often a process ends in the middle. One transaction at a time does this,
under an advisory lock that ends with it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from django.db import connection, transaction

from leases.advisory_locks import EVENT_DISPATCH, try_advisory_xact_lock
from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import EventPage, Place, StoredEvent, read_page
from orchestrator.webhooks import notifications
from orchestrator.webhooks.dispatch_position import BEAT_TIME, move_position, read_position
from orchestrator.webhooks.models import Delivery, Webhook, WebhookStatus
from orchestrator.webhooks.new_deliveries import webhook_delivery
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of

EVENTS_PER_PAGE: Final = 500

_ORGANIZATIONS: Final = """
SELECT o.slug FROM runtime_jobs_organization o
 WHERE EXISTS (SELECT FROM webhooks w WHERE w.organization_id = o.id AND w.status IN ('active', 'paused'))
    OR EXISTS (SELECT FROM notification_rules r WHERE r.organization_id = o.id AND r.is_enabled)"""


@dataclass(frozen=True)
class Distributed:
    """The result of one page.

    Attributes:
        scanned: The number of events that were read, of all organizations.
        deliveries: The number of deliveries that were created.
        is_complete: There are no further events yet.
        seconds_behind: The age of the oldest event that was not read; 0 without one.
    """

    scanned: int
    deliveries: int
    is_complete: bool
    seconds_behind: float


def distribute_page(*, rows: int = EVENTS_PER_PAGE, now: datetime | None = None) -> Distributed | None:
    """Turn the next events into deliveries and gathered notifications.

    Args:
        rows: The largest number of events.
        now: The present; by default the time of the database.

    Returns:
        What was done, or None if another process is doing it.
    """
    with transaction.atomic():
        if not try_advisory_xact_lock(EVENT_DISPATCH, 0):
            return None
        position, beat_at = read_position()
        page = _read_events(position, rows)
        distributed_at = now or database_now()
        envelopes = {event.event_id: envelope_of(event) for event in page.events}
        deliveries = _deliveries(page.events, envelopes, distributed_at)
        deliveries += notifications.gather(page.events, envelopes, now=distributed_at)
        # An event that a restore has set back is delivered under its id already.
        Delivery.objects.bulk_create(deliveries, batch_size=500, ignore_conflicts=True)
        # An idle process writes its beat once a second. A write for each empty page would itself move the bound.
        if page.scanned or abs(distributed_at - beat_at) >= BEAT_TIME:
            move_position(page.place, distributed_at)
    return Distributed(page.scanned, len(deliveries), page.is_complete, page.seconds_behind)


def _read_events(after: Place, rows: int) -> EventPage:
    """Read events of the organizations that have a webhook or a rule when the page is read.

    A webhook that is created between both statements may want an event of the page, so the organizations are read again
    afterwards.
    """
    organizations = _organizations()
    while True:
        page = read_page(after, organizations=sorted(organizations), rows=rows)
        present = _organizations() if page.scanned else organizations
        if present <= organizations:
            return page
        organizations |= present


def _organizations() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(_ORGANIZATIONS)
        return {row[0] for row in cursor.fetchall()}


def _deliveries(events: Iterable[StoredEvent], envelopes: dict[str, dict[str, Any]], now: datetime) -> list[Delivery]:
    """Return the deliveries of events to webhooks."""
    by_organization = _webhooks({event.org_slug for event in events if event.org_slug})
    found = []
    for event in events:
        body = ""
        for webhook in by_organization.get(event.org_slug or "", ()):
            if event.created_at < webhook.created_at or not webhook.wants(event.event_type, event.job_type or ""):
                continue
            body = body or orjson.dumps(envelopes[event.event_id]).decode()
            found.append(webhook_delivery(webhook, uuid_of(event.event_id), envelopes[event.event_id], body, now))
    return found


def _webhooks(slugs: set[str]) -> dict[str, list[Webhook]]:
    found = defaultdict(list)
    if slugs:
        rows = Webhook.objects.filter(organization__slug__in=slugs).select_related("organization")
        for webhook in rows.filter(status__in=[WebhookStatus.ACTIVE, WebhookStatus.PAUSED]).order_by("pk"):
            found[webhook.organization.slug].append(webhook)
    return found
