"""Requests per minute, hour and day, counted in PostgreSQL over all processes (contract 1.4)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from django.db import connection

from orchestrator.http.request_limits import RequestRateExceeded, RequestRates, RequestWindow, count_request

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 1, 1, tzinfo=UTC)  # a minute, an hour and a day begin here
THREE = RequestRates(minute=3, hour=0, day=0)


def send(seconds: float = 0, *, client: str = "one", rates: RequestRates = THREE, kind: str = "test") -> str | None:
    """The window that refuses a request at this time, or None."""
    try:
        count_request(kind, client, rates, now=DAY + timedelta(seconds=seconds))
    except RequestRateExceeded as refusal:
        return refusal.window
    return None


def test_as_many_as_the_limit_are_admitted_within_a_minute():
    assert [send(second) for second in range(4)] == [None, None, None, "minute"]


def test_without_a_limit_nothing_is_stored(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert [send(rates=RequestRates(0, 0, 0)) for _ in range(3)] == [None] * 3
    assert not RequestWindow.objects.exists()


def test_a_refused_request_is_counted():
    """A client that never pauses remains refused: seven of the last minute weigh more than the limit for half of the next one."""
    assert [send(59) for _ in range(7)].count("minute") == 4
    assert send(60 + 20) == "minute"


def test_the_minute_before_counts_by_the_share_that_is_still_in_the_window():
    assert [send(59) for _ in range(3)] == [None] * 3
    assert send(60 + 15) == "minute", "3 * 0.75 + 1"
    assert send(60 + 45) is None, "3 * 0.25 + 2"
    assert send(60 + 59) == "minute", "3 / 60 + 3"


def test_two_minutes_later_nothing_is_left_of_a_burst():
    for _ in range(500):
        send(30)
    assert send(60 + 59) == "minute"
    assert send(180) is None


def test_the_shortest_full_window_is_named():
    rates = RequestRates(minute=10, hour=2, day=2)
    assert [send(rates=rates) for _ in range(3)] == [None, None, "hour"]
    assert [send(7200 + n, rates=RequestRates(1, 10, 2)) for n in range(2)] == ["day", "minute"]


def test_the_refusal_says_the_limit_and_when_the_window_ends():
    for _ in range(3):
        send(10)
    with pytest.raises(RequestRateExceeded) as refusal:
        count_request("test", "one", THREE, now=DAY + timedelta(seconds=12.5))
    assert (refusal.value.limit, refusal.value.retry_after) == (3, 48)


def test_clients_and_kinds_of_requests_are_counted_apart():
    for _ in range(4):
        send()
    assert (send(client="two"), send(kind="other"), send()) == (None, None, "minute")


def test_a_clock_that_is_set_back_does_not_begin_anew():
    for _ in range(4):
        send(120)
    assert send(60) == "minute"


def test_no_client_is_stored_in_plain():
    send(client="192.0.2.1")
    with connection.cursor() as cursor:
        cursor.execute("SELECT t::text FROM request_windows t")
        assert "192.0.2.1" not in cursor.fetchone()[0]
    key = bytes(RequestWindow.objects.get().key)
    assert len(key) == 32
    assert b"192.0.2.1" not in key
    assert ip_address("192.0.2.1").packed not in key


def test_rows_that_have_no_effect_any_more_are_deleted_with_later_requests():
    for number in range(5):
        send(client=str(number))
    send(200)
    assert RequestWindow.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_requests_at_the_same_time_are_all_counted():
    def many(_):
        try:
            return [send(rates=RequestRates(30, 1000, 1000)) for _ in range(10)]
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        outcomes = [outcome for some in pool.map(many, range(6)) for outcome in some]
    assert (outcomes.count(None), outcomes.count("minute")) == (30, 30)
