"""Calls are counted in PostgreSQL over all processes, in windows that slide or begin with the first call."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from django.db import connection

from orchestrator.limits.throttles import (
    EXPIRED_ROWS_PER_WINDOW,
    ThrottleWindow,
    Window,
    WindowState,
    count,
    read,
    take_back,
)
from tests.orchestrator.limits.windows import expired_window

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 1, 1, tzinfo=UTC)  # a minute, an hour and a day begin here
SLIDING = Window("test", "one", 60, slides=True)
FIXED = Window("test", "one", 60)


def send(seconds: float = 0, window: Window = SLIDING) -> float:
    """The calls in the window after one more at this time."""
    (state,) = count([window], now=DAY + timedelta(seconds=seconds))
    return state.number


@pytest.mark.parametrize("window", [SLIDING, FIXED])
def test_calls_within_a_window_are_counted(window):
    assert [send(second, window) for second in range(4)] == [1, 2, 3, 4]


def test_without_a_window_nothing_is_stored(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert count([]) == []
    assert not ThrottleWindow.objects.exists()


def test_the_period_before_counts_by_the_share_that_is_still_in_a_sliding_window():
    assert [send(59) for _ in range(3)] == [1, 2, 3]
    assert send(60 + 15) == 3 * 0.75 + 1
    assert send(60 + 45) == 3 * 0.25 + 2
    assert send(60 + 59) == 3 / 60 + 3


def test_two_periods_later_nothing_is_left_of_a_burst():
    for _ in range(500):
        send(30)
    assert send(60 + 59) == pytest.approx(500 / 60 + 1)
    assert send(180) == 1


def test_a_fixed_window_begins_with_the_first_call_and_leaves_nothing():
    assert [send(second, FIXED) for second in (30, 89)] == [1, 2]
    assert send(90, FIXED) == 1, "exactly when the window ends"
    assert send(149, FIXED) == 2


def test_a_call_later_does_not_move_the_end_of_a_window():
    (begun,) = count([FIXED], now=DAY + timedelta(seconds=10))
    assert begun == WindowState(1, 60)
    (later,) = count([FIXED], now=DAY + timedelta(seconds=12.5))
    assert later == WindowState(2, 57.5)
    assert later.retry_after == 58


def test_the_period_of_a_sliding_window_ends_when_the_clock_says():
    (state,) = count([SLIDING], now=DAY + timedelta(seconds=12.5))
    assert state == WindowState(1, 47.5)
    assert state.retry_after == 48


def test_windows_of_several_lengths_are_counted_at_once_in_their_order():
    windows = [Window("test", "one", seconds, slides=True) for seconds in (3600, 60, 86_400)]
    count(windows[:1], now=DAY)
    assert [state.number for state in count(windows, now=DAY)] == [2, 1, 1]
    assert [state.seconds_left for state in count(windows, now=DAY)] == [3600, 60, 86_400]


def test_a_call_within_its_windows_costs_one_statement(django_assert_num_queries):
    windows = [FIXED, Window("test", "two", 60)]
    count(windows)
    with django_assert_num_queries(1):
        count(windows)


def test_clients_kinds_and_lengths_are_counted_apart():
    for _ in range(4):
        send()
    others = [Window("test", "two", 60), Window("other", "one", 60), Window("test", "one", 61)]
    assert [send(window=other) for other in others] == [1, 1, 1]
    assert send() == 5


@pytest.mark.parametrize("window", [SLIDING, FIXED])
def test_a_clock_that_is_set_back_does_not_begin_anew(window):
    for _ in range(4):
        send(120, window)
    assert send(60, window) == 5
    assert count([window], now=DAY)[0].seconds_left == 60


def test_reading_counts_nothing():
    assert read([FIXED]) == [WindowState(0, 0)]
    count([FIXED])
    (state,) = read([FIXED])
    assert (state.number, 0 < state.seconds_left <= 60) == (1, True)
    ThrottleWindow.objects.update(ends_at=DAY)
    assert read([FIXED]) == [WindowState(0, 0)]


def test_a_call_that_is_taken_back_does_not_count_and_no_count_is_negative():
    other = Window("test", "two", 60)
    count([FIXED, other])
    count([FIXED])
    for expected in ([1, 0], [0, 0], [0, 0]):
        take_back([FIXED, other])
        assert [state.number for state in read([FIXED, other])] == expected


def test_no_client_is_stored_in_plain():
    send(window=Window("test", "192.0.2.1", 60))
    with connection.cursor() as cursor:
        cursor.execute("SELECT t::text FROM throttle_windows t")
        assert "192.0.2.1" not in cursor.fetchone()[0]
    key = bytes(ThrottleWindow.objects.get().key)
    assert len(key) == 32
    assert b"192.0.2.1" not in key
    assert ip_address("192.0.2.1").packed not in key


def test_rows_that_have_no_effect_any_more_are_deleted_when_a_window_begins():
    for number in range(5):
        send(window=Window("test", str(number), 60, slides=True))
    send(100)
    assert ThrottleWindow.objects.count() == 6, "the period before still counts"
    send(200)
    assert ThrottleWindow.objects.count() == 1


@pytest.mark.parametrize("joins", ["on", "off"])
def test_no_more_expired_rows_are_deleted_at_once_than_the_limit_says(joins):
    """Whatever the plan is: a subquery that locks rows finds others each time that a nested loop executes it."""
    with connection.cursor() as cursor:
        for kind in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):
            cursor.execute(f"SET LOCAL enable_{kind} = {joins}")
    ThrottleWindow.objects.bulk_create(expired_window(number, DAY) for number in range(100))
    count([FIXED, Window("test", "two", 60)])
    assert ThrottleWindow.objects.filter(kind="expired").count() == 100 - 2 * EXPIRED_ROWS_PER_WINDOW


@pytest.mark.django_db(transaction=True)
def test_calls_at_the_same_time_are_all_counted():
    def many(_):
        try:
            return [send() for _ in range(10)]
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        numbers = [number for some in pool.map(many, range(6)) for number in some]
    assert sorted(numbers) == list(range(1, 61))
