"""The hash of an event in SQL equals the hash in Python, byte for byte."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leases.sql_functions import read_sql
from runtime_jobs.events import EventRow, event_hash

pytestmark = pytest.mark.django_db

_HASH = "SELECT event_hash(%s, %s, %s, %s, %s, %s, '{}', %s, %s, %s, %s, %s, %s, %s, %s, %s)"
# PostgreSQL stores neither NUL nor half a surrogate pair.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ODD = [
    "",
    '"',
    "\\",
    "\x01\x1f\x7f\x80",
    "\b\f\n\r\t",
    "\u2028\u2029\ufeff",
    "é😀\U00010348",
    "'; --",
    "</script>",
    "\u202e",
    "%s",
]
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))])
TIMES = st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=ZONES)  # noqa: DTZ001 Hypothesis adds the zone
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def sql_hash(row: EventRow) -> str:
    values = [row.event_ulid, row.job_id, row.seq, row.event_type, row.actor_kind, row.actor_id, row.created_at]
    values += [row.org_slug, row.job_type, row.correlation_id, row.worker_id, row.from_state, row.to_state, row.fence]
    with connection.cursor() as cursor:
        cursor.execute(_HASH, [*values, row.prev_hash])
        return cursor.fetchone()[0]


def row(**changes) -> EventRow:
    values = {
        "event_ulid": "evt_01", "job_id": "rtj_01", "seq": 2, "event_type": "job.leased", "actor_kind": "worker",
        "actor_id": "wrk_01", "payload_json": {}, "created_at": datetime(2026, 3, 17, 20, 0, 0, 120, UTC),
        "org_slug": "acme", "job_type": "steps", "correlation_id": "abc", "worker_id": "wrk_01",
        "from_state": "queued", "to_state": "leased", "fence": 1, "prev_hash": "0" * 64,
    }  # fmt: skip
    return EventRow(**values | changes)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.tuples(*[TEXTS] * 9),
    optional=st.tuples(*[st.none() | TEXTS] * 3),
    numbers=st.tuples(NUMBERS, NUMBERS),
    created_at=TIMES,
)
def test_the_hashes_are_equal_for_any_values(texts, optional, numbers, created_at):
    names = ["event_ulid", "job_id", "event_type", "actor_kind", "actor_id", "org_slug", "job_type", "correlation_id"]
    values = dict(zip([*names, "prev_hash"], texts, strict=True))
    values |= dict(zip(["worker_id", "from_state", "to_state"], optional, strict=True))
    event = row(**values, seq=numbers[0], fence=numbers[1], created_at=created_at)
    assert sql_hash(event) == event_hash(event)


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_the_hashes_are_equal_for_odd_texts(text):
    event = row(correlation_id=text, actor_id=text, from_state=text)
    assert sql_hash(event) == event_hash(event)


@pytest.mark.parametrize("microsecond", [0, 1, 10, 100_000, 999_999])
def test_the_hashes_are_equal_for_fractions_of_a_second(microsecond):
    event = row(created_at=datetime(2026, 1, 2, 3, 4, 5, microsecond, UTC))
    assert sql_hash(event) == event_hash(event)


def test_sql_hashes_only_events_without_a_payload():
    """The tests above hash no other payload than `{}`: a caller with another one must extend them."""
    text = re.sub(r"--[^\n]*", "", read_sql())
    calls = re.findall(r"(?<!FUNCTION )event_hash\((.*?)\) (?:AS|END)", text, re.DOTALL)
    assert len(calls) == text.count("event_hash(") - 1 == 2
    for call in calls:
        assert re.search(r"'worker',\s*(given\.)?worker_id, '\{\}', p_now,", call), call
