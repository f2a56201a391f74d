"""Claims due deliveries, and records what became of them.

A claim is a time in the row, not a lock: no transaction is open while a receiver is waited for. The process renews it
while it sends, because a mail has no limit of time as a whole. A webhook has ten places, so that a receiver in trouble
holds up no other one. A receiver whose last try has failed has fewer.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from django.db import connection, transaction

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.webhooks.retry_schedule import JITTER, next_pause
from orchestrator.webhooks.sender import TryResult

PLACES: Final = 10  # deliveries of one webhook that are sent at a time, by all dispatchers
PLACES_WHILE_FAILING: Final = 2
MAIL_PLACES: Final = 4  # mails that are sent at a time
CLAIM_TIME: Final = timedelta(seconds=60)  # after the last renewal
RENEW_AFTER: Final = timedelta(seconds=15)  # younger claims are not renewed: most tries end before
MAX_RELEASED: Final = 1000  # deliveries of webhooks that are not active, by one statement

_NOW: Final = "coalesce(%(now)s::timestamptz, statement_timestamp())"
_IS_FREE: Final = f"d.due_at <= {_NOW} AND (d.claimed_until IS NULL OR d.claimed_until <= {_NOW})"
# The webhooks with pending deliveries, by one look into the index for each of them. Those that another dispatcher locks
# at this time are left to it. Counts that follow are a statement of their own: they see what it has committed.
_LOCK_WEBHOOKS: Final = f"""
WITH RECURSIVE pending (webhook_id) AS (
    (SELECT min(webhook_id) FROM deliveries WHERE due_at IS NOT NULL)
     UNION ALL
    SELECT (SELECT d.webhook_id FROM deliveries d
             WHERE d.due_at IS NOT NULL AND d.webhook_id > p.webhook_id ORDER BY d.webhook_id LIMIT 1)
      FROM pending p WHERE p.webhook_id IS NOT NULL
)
SELECT w.id, w.failing_since IS NOT NULL
  FROM webhooks w JOIN pending p ON p.webhook_id = w.id
 WHERE w.status = 'active'
   AND EXISTS (SELECT FROM deliveries d WHERE d.webhook_id = w.id AND {_IS_FREE})
   FOR NO KEY UPDATE OF w SKIP LOCKED"""  # noqa: S608 our own text
_CLAIM: Final = f"""
WITH place AS MATERIALIZED (
    SELECT w.id AS webhook_id, w.number, w.places - (
               SELECT count(*) FROM deliveries d WHERE d.webhook_id = w.id AND d.claimed_until > {_NOW}) AS free
      FROM unnest(%(webhooks)s::bigint[], %(places)s::integer[]) WITH ORDINALITY w(id, places, number)
), chosen AS MATERIALIZED (
    SELECT found.id
      FROM (SELECT * FROM place WHERE free > 0 ORDER BY number) place
     CROSS JOIN LATERAL (
        SELECT d.id FROM deliveries d WHERE d.webhook_id = place.webhook_id AND {_IS_FREE}
         ORDER BY d.due_at LIMIT place.free FOR NO KEY UPDATE SKIP LOCKED) found
     LIMIT %(capacity)s
)
UPDATE deliveries d SET claimed_until = {_NOW} + %(claim_time)s, claim_count = d.claim_count + 1
  FROM chosen, webhooks w
 WHERE d.id = chosen.id AND w.id = d.webhook_id
RETURNING d.id, d.claim_count, d.round_tries, d.tries, d.event_id, d.event_type, d.body, d.due_at, w.id, w.webhook_ulid,
          w.url, w.sealed_secret,
          CASE WHEN w.former_secret_until > {_NOW} THEN w.sealed_former_secret END, w.failing_since IS NOT NULL"""  # noqa: S608
_CLAIM_MAIL: Final = f"""
WITH chosen AS MATERIALIZED (
    SELECT d.id FROM deliveries d WHERE d.webhook_id IS NULL AND {_IS_FREE}
     ORDER BY d.due_at LIMIT %(places)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE deliveries d SET claimed_until = {_NOW} + %(claim_time)s, claim_count = d.claim_count + 1
  FROM chosen WHERE d.id = chosen.id
RETURNING d.id, d.claim_count, d.round_tries, d.tries, d.event_id, d.event_type, d.body, d.due_at, d.recipients"""  # noqa: S608
_RECORD: Final = f"""
WITH given AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(claims)s::bigint[], %(successes)s::boolean[], %(pauses)s::interval[],
                         %(started)s::timestamptz[], %(durations)s::integer[], %(codes)s::smallint[],
                         %(answers)s::text[], %(sentences)s::text[])
               AS given(id, claim_count, is_success, pause, started_at, duration_ms, status_code, answer, sentence)
), changed AS (
    UPDATE deliveries d
       SET claimed_until = NULL, tries = d.tries + 1, round_tries = d.round_tries + 1,
           status = CASE WHEN given.is_success THEN 'succeeded' WHEN given.pause IS NULL THEN 'dead' ELSE 'pending' END,
           due_at = CASE WHEN given.is_success THEN NULL ELSE {_NOW} + given.pause END,
           finished_at = CASE WHEN given.is_success OR given.pause IS NULL THEN {_NOW} END,
           last_error = CASE WHEN given.is_success THEN '' ELSE given.sentence END
      FROM given WHERE d.id = given.id AND d.claim_count = given.claim_count AND d.due_at IS NOT NULL
    RETURNING d.id, d.claim_count, d.tries
), tried AS (
    INSERT INTO delivery_tries (delivery_id, number, started_at, duration_ms, is_success, status_code, answer, sentence)
    SELECT changed.id, changed.tries, given.started_at, given.duration_ms, given.is_success, given.status_code,
           given.answer, given.sentence
      FROM changed JOIN given USING (id, claim_count)
)
SELECT id FROM changed"""  # noqa: S608 our own text
# What waits for a webhook that is paused, disabled or deleted becomes a dead letter, also after a claim that was lost.
_RELEASE: Final = f"""
UPDATE deliveries d
   SET status = 'dead', due_at = NULL, claimed_until = NULL, finished_at = {_NOW},
       last_error = 'The webhook is ' || chosen.status || '.'
  FROM (SELECT d.id, w.status FROM webhooks w JOIN deliveries d ON d.webhook_id = w.id
         WHERE w.status <> 'active' AND d.due_at IS NOT NULL
           AND (d.claimed_until IS NULL OR d.claimed_until <= {_NOW})
         LIMIT %(rows)s FOR NO KEY UPDATE OF d SKIP LOCKED) chosen
 WHERE d.id = chosen.id"""  # noqa: S608 our own text
_COLUMNS: Final = ("id", "claim_count", "round_tries", "tries", "event_id", "event_type", "body", "due_at")
_WEBHOOK_COLUMNS: Final = (
    *("webhook_id", "webhook_ulid", "url", "sealed_secret", "sealed_former_secret", "is_failing"),
)
_RENEW: Final = f"""
UPDATE deliveries d SET claimed_until = {_NOW} + %(claim_time)s
  FROM unnest(%(ids)s::bigint[], %(claims)s::bigint[]) mine(id, claim_count)
 WHERE d.id = mine.id AND d.claim_count = mine.claim_count
   AND d.claimed_until < {_NOW} + %(claim_time)s - %(renew_after)s"""  # noqa: S608 our own text
_GIVE_BACK: Final = """
UPDATE deliveries d SET claimed_until = NULL
  FROM unnest(%(ids)s::bigint[], %(claims)s::bigint[]) mine(id, claim_count)
 WHERE d.id = mine.id AND d.claim_count = mine.claim_count"""


@dataclass(frozen=True)
class ClaimedDelivery:
    """A delivery that this process sends.

    Attributes:
        round_tries: The tries of the round before this one.
        tries: All tries before this one.
        due_at: When it was due.
        webhook_id: The key of the webhook; None for mail.
        is_failing: Whether the last try for the webhook has failed.
        recipients: The addresses of a mail.
    """

    id: int
    claim_count: int
    round_tries: int
    tries: int
    event_id: UUID
    event_type: str
    body: str
    due_at: datetime
    webhook_id: int | None = None
    webhook_ulid: str = ""
    url: str = ""
    sealed_secret: bytes | None = None
    sealed_former_secret: bytes | None = None
    is_failing: bool = False
    recipients: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedTry:
    """A claimed delivery, and what happened when it was sent."""

    delivery: ClaimedDelivery
    result: TryResult


class RecordHealth(Protocol):
    """Records what tries mean for their webhooks, in the transaction that records the tries."""

    def __call__(self, uow: UnitOfWork, tries: Sequence[FinishedTry], *, now: datetime | None) -> None: ...


def claim_deliveries(capacity: int, *, now: datetime | None = None) -> list[ClaimedDelivery]:
    """Claim due deliveries to webhooks. Nothing is claimed twice, and no webhook gets more than its places.

    Args:
        capacity: The largest number of deliveries.
        now: The present; by default the time of the database.
    """
    if capacity < 1:
        return []
    values: dict[str, Any] = {"now": now, "claim_time": CLAIM_TIME, "capacity": capacity}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK_WEBHOOKS, values)
        webhooks = [(key, PLACES_WHILE_FAILING if is_failing else PLACES) for key, is_failing in cursor.fetchall()]
        if not webhooks:
            return []
        random.shuffle(webhooks)  # where the capacity does not suffice for all, each is served at some time
        values |= {"webhooks": [key for key, _ in webhooks], "places": [places for _, places in webhooks]}
        cursor.execute(_CLAIM, values)
        return [_claimed(_COLUMNS + _WEBHOOK_COLUMNS, row) for row in cursor.fetchall()]


def claim_mail(places: int, *, now: datetime | None = None) -> list[ClaimedDelivery]:
    """Claim due mails.

    Args:
        places: The largest number of mails.
        now: The present; by default the time of the database.
    """
    if places < 1:
        return []
    with connection.cursor() as cursor:
        values: dict[str, Any] = {"now": now, "claim_time": CLAIM_TIME, "places": places}
        cursor.execute(_CLAIM_MAIL, values)
        return [_claimed((*_COLUMNS, "recipients"), row) for row in cursor.fetchall()]


@operation
def record_tries(
    uow: UnitOfWork,
    tries: Sequence[FinishedTry],
    *,
    record_health: RecordHealth,
    jitter: Callable[[], float] = lambda: random.uniform(*JITTER),  # noqa: S311 not a secret
    now: datetime | None = None,
) -> int:
    """Record tries, and when the failed ones are repeated. A try of a claim that was lost meanwhile is dropped.

    Args:
        tries: The tries.
        record_health: Records what they mean for the webhooks.
        jitter: Returns a factor of the pause before the next try.
        now: The present; by default the time of the database.

    Returns:
        The number of recorded tries.
    """
    if not tries:
        return 0
    results = [one.result for one in tries]
    values: dict[str, Any] = {
        "now": now,
        "ids": [one.delivery.id for one in tries],
        "claims": [one.delivery.claim_count for one in tries],
        "successes": [result.is_success for result in results],
        "pauses": [_pause(one, jitter()) for one in tries],
        "started": [result.started_at for result in results],
        "durations": [result.duration_ms for result in results],
        "codes": [result.status_code for result in results],
        "answers": [result.answer for result in results],
        "sentences": [result.sentence for result in results],
    }
    record_health(uow, tries, now=now)  # locks webhooks, which all operations lock before deliveries
    with connection.cursor() as cursor:
        cursor.execute(_RECORD, values)
        return len(cursor.fetchall())


def release_inactive(*, now: datetime | None = None) -> int:
    """Turn pending deliveries of webhooks that are not active into dead letters. Return their number, bounded."""
    with connection.cursor() as cursor:
        cursor.execute(_RELEASE, {"now": now, "rows": MAX_RELEASED})
        return int(cursor.rowcount)


def renew_claims(deliveries: Sequence[ClaimedDelivery], *, now: datetime | None = None) -> int:
    """Prolong claims that are older than `RENEW_AFTER`. A claim that was lost meanwhile is left alone.

    Args:
        deliveries: The deliveries that are being sent.
        now: The present; by default the time of the database.

    Returns:
        The number of prolonged claims.
    """
    if not deliveries:
        return 0
    values: dict[str, Any] = {"now": now, "claim_time": CLAIM_TIME, "renew_after": RENEW_AFTER}
    values |= {"ids": [one.id for one in deliveries], "claims": [one.claim_count for one in deliveries]}
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, values)
        return int(cursor.rowcount)


def give_back(deliveries: Sequence[ClaimedDelivery]) -> None:
    """Let another process send deliveries at once, because this process ends."""
    if deliveries:
        with connection.cursor() as cursor:
            values = {"ids": [one.id for one in deliveries], "claims": [one.claim_count for one in deliveries]}
            cursor.execute(_GIVE_BACK, values)


def _pause(one: FinishedTry, jitter: float) -> timedelta | None:
    """Return the time until the next try; None after a success, after the last try, or if the receiver is gone."""
    if one.result.is_success or one.result.is_gone:
        return None
    return next_pause(one.delivery.round_tries + 1, jitter=jitter, retry_after=one.result.retry_after)


def _claimed(columns: Sequence[str], row: Sequence[Any]) -> ClaimedDelivery:
    """Return a row of a claim. Its columns are those of the statement, in this order."""
    values = dict(zip(columns, row, strict=True))
    for name in ("sealed_secret", "sealed_former_secret"):
        if values.get(name) is not None:
            values[name] = bytes(values[name])
    return ClaimedDelivery(**values | {"recipients": tuple(values.get("recipients", ()))})
