"""Notifications: events that match a rule, gathered by their key, and sent to a webhook or by mail.

While an organization is in incident mode each event is a notification of its own, and what was gathered before is sent
at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import orjson
from django.db import connection, transaction

from orchestrator.core.datetimes import format_timestamp
from orchestrator.events.pages import StoredEvent
from orchestrator.incidents.models import IncidentMode
from orchestrator.webhooks.models import Delivery, NotificationRule, WebhookStatus
from orchestrator.webhooks.new_deliveries import mail_delivery, webhook_delivery
from orchestrator.webhooks.notification_rules import permitted_recipients
from runtime_jobs.db_time import database_now
from runtime_jobs.event_types import NOTIFICATION
from runtime_jobs.models import Job

MAX_SENT: Final = 200  # gathered notifications that one transaction sends

_ADD: Final = """
INSERT INTO gathered_notifications AS g
       (rule_id, key, event_count, first_event_at, last_event_at, last_event, due_at)
SELECT rule, key, number, first_at, last_at, event::jsonb, due
  FROM unnest(%(rules)s::bigint[], %(keys)s::text[], %(counts)s::integer[], %(first)s::timestamptz[],
              %(last)s::timestamptz[], %(events)s::text[], %(due)s::timestamptz[])
           AS added(rule, key, number, first_at, last_at, event, due)
 ORDER BY 1, 2
    ON CONFLICT (rule_id, key) DO UPDATE
   SET event_count = g.event_count + excluded.event_count, last_event_at = excluded.last_event_at,
       last_event = excluded.last_event, due_at = least(g.due_at, excluded.due_at)"""
_NOW: Final = "coalesce(%(now)s::timestamptz, statement_timestamp())"
_TAKE_DUE: Final = f"""
DELETE FROM gathered_notifications WHERE id = ANY (ARRAY(
    SELECT id FROM gathered_notifications
     WHERE due_at <= {_NOW}
        OR rule_id = ANY (ARRAY(
               SELECT r.id FROM incident_modes m
                 JOIN runtime_jobs_organization o ON o.slug = m.org_slug
                 JOIN notification_rules r ON r.organization_id = o.id
                WHERE m.until > {_NOW}))
     ORDER BY due_at LIMIT %(rows)s FOR UPDATE SKIP LOCKED))
RETURNING rule_id, event_count, first_event_at, last_event_at, last_event"""  # noqa: S608 our own text


class JobFacts(NamedTuple):
    """Has the facts of a job that rules compare. An event without a job has none of them."""

    project_slug: str
    priority: int
    failure_class: str | None


NO_JOB: Final = JobFacts("", -1, None)


@dataclass
class Gathered:
    """Events of one rule and key.

    Attributes:
        rule: The rule.
        event_count: The number of events.
        first_event_at: The time of the first event.
        last_event_at: The time of the newest event.
        last_event: The envelope of the newest event.
    """

    rule: NotificationRule
    event_count: int
    first_event_at: datetime
    last_event_at: datetime
    last_event: dict[str, Any]


def gather(events: Sequence[StoredEvent], envelopes: dict[str, dict[str, Any]], *, now: datetime) -> list[Delivery]:
    """Store the events that match a rule, and return the deliveries of those that are not gathered.

    Args:
        events: The events of a page, in order.
        envelopes: Their envelopes by event id.
        now: The present.
    """
    rules = _rules({event.org_slug for event in events if event.org_slug})
    if not rules:
        return []
    jobs = _job_facts(event for event in events if event.org_slug in rules)
    in_incident_mode = _organizations_in_incident_mode(rules, now)
    at_once: list[Gathered] = []
    by_key: dict[tuple[int, str], Gathered] = {}
    for event in events:
        facts = jobs.get(event.job_id or "", NO_JOB)
        for rule in rules.get(event.org_slug or "", ()):
            if event.created_at < rule.created_at or not matches(rule, event, facts):
                continue
            one = Gathered(rule, 1, event.created_at, event.created_at, envelopes[event.event_id])
            if rule.gather_seconds == 0 or event.org_slug in in_incident_mode:
                at_once.append(one)
                continue
            key = f"{event.event_type} {event.job_type or '-'} {facts.project_slug or '-'}"
            before = by_key.setdefault((rule.pk, key), one)
            if before is not one:
                before.event_count += 1
                before.last_event_at, before.last_event = one.last_event_at, one.last_event
    _store(by_key, now)
    return _deliveries(at_once, now)


def send_gathered(*, now: datetime | None = None) -> int:
    """Turn gathered notifications that are due into deliveries, and all of organizations in incident mode.

    Returns:
        Their number, at most `MAX_SENT`.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_TAKE_DUE, {"now": now, "rows": MAX_SENT})
        found = cursor.fetchall()
        if not found:
            return 0
        rows = NotificationRule.objects.filter(pk__in={row[0] for row in found})
        rules = rows.select_related("organization", "webhook__organization").in_bulk()
        sent_at = now or database_now()
        due = [
            Gathered(rules[rule], number, first_at, last_at, _document(event))
            for rule, number, first_at, last_at, event in found
            if rule in rules
        ]
        Delivery.objects.bulk_create(_deliveries(due, sent_at))
        return len(found)


def matches(rule: NotificationRule, event: StoredEvent, job: JobFacts) -> bool:
    """Return whether an event matches all conditions of a rule."""
    return (
        event.event_type in rule.event_types
        and (not rule.job_types or event.job_type in rule.job_types)
        and (not rule.projects or job.project_slug in rule.projects)
        and (not rule.failure_classes or (job.failure_class in rule.failure_classes and _is_failure(event)))
        and (rule.priority_from is None or job.priority >= rule.priority_from)
    )


def _is_failure(event: StoredEvent) -> bool:
    return event.event_type == "job.failed"


def _rules(slugs: set[str]) -> dict[str, list[NotificationRule]]:
    found = defaultdict(list)
    if slugs:
        rows = NotificationRule.objects.filter(organization__slug__in=slugs, is_enabled=True).order_by("pk")
        for rule in rows.select_related("organization", "webhook__organization"):
            found[rule.organization.slug].append(rule)
    return found


def _job_facts(events: Iterable[StoredEvent]) -> dict[str, JobFacts]:
    names = {event.job_id for event in events if event.job_id}
    if not names:
        return {}
    rows = Job.objects.filter(job_ulid__in=names)
    columns = rows.values_list("job_ulid", "project_slug", "priority", "failure_class")
    return {job_ulid: JobFacts(project, priority, failure) for job_ulid, project, priority, failure in columns}


def _organizations_in_incident_mode(slugs: Iterable[str], now: datetime) -> set[str]:
    rows = IncidentMode.objects.filter(org_slug__in=list(slugs), until__gt=now)
    return set(rows.values_list("org_slug", flat=True))


def _store(by_key: dict[tuple[int, str], Gathered], now: datetime) -> None:
    if not by_key:
        return
    values: dict[str, Any] = {
        "rules": [rule for rule, _ in by_key],
        "keys": [key for _, key in by_key],
        "counts": [one.event_count for one in by_key.values()],
        "first": [one.first_event_at for one in by_key.values()],
        "last": [one.last_event_at for one in by_key.values()],
        "events": [orjson.dumps(one.last_event).decode() for one in by_key.values()],
        "due": [now + timedelta(seconds=one.rule.gather_seconds) for one in by_key.values()],
    }
    with connection.cursor() as cursor:
        cursor.execute(_ADD, values)


def _deliveries(notifications: Sequence[Gathered], now: datetime) -> list[Delivery]:
    """Return the deliveries of notifications. There is none by mail to whom the organization may send no mail now."""
    by_mail = permitted_recipients([one.rule for one in notifications if one.rule.webhook is None])
    return [
        _delivery(one, by_mail.get(one.rule.pk, ()), now)
        for one in notifications
        if one.rule.webhook is not None or by_mail[one.rule.pk]
    ]


def _delivery(one: Gathered, recipients: Sequence[str], now: datetime) -> Delivery:
    """Return the delivery of a notification. Its body has the members of every envelope.

    Args:
        one: The notification.
        recipients: The addresses, if it is sent by mail.
        now: The present.
    """
    event_id = uuid4()
    last = one.last_event
    envelope = {
        "eventId": str(event_id),
        "eventType": NOTIFICATION,
        "timestamp": format_timestamp(now),
        "tenant": one.rule.organization.slug,
        "jobId": last["jobId"],
        "jobType": last["jobType"],
        "correlationId": last["correlationId"],
        "idempotencyKey": str(event_id),
        "payload": {
            "rule": {"id": one.rule.rule_ulid, "name": one.rule.name},
            "count": one.event_count,
            "firstEventAt": format_timestamp(one.first_event_at),
            "lastEventAt": format_timestamp(one.last_event_at),
            "lastEvent": last,
        },
        "provenance": None,
        "integrity": None,
    }
    body = orjson.dumps(envelope).decode()
    webhook = one.rule.webhook
    if webhook is None:
        return mail_delivery(one.rule.organization.slug, recipients, event_id, envelope=envelope, body=body, now=now)
    assert webhook.status != WebhookStatus.DELETED  # noqa: S101 its rules were deleted with it
    return webhook_delivery(webhook, event_id, envelope, body, now)


def _document(value: Any) -> dict[str, Any]:
    """Return a JSON column of a raw query: Django lets psycopg return text."""
    return orjson.loads(value) if isinstance(value, str | bytes) else dict(value)
