"""When a delivery is tried again."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.webhooks.retry_schedule import JITTER, MAX_RETRY_AFTER, next_pause, parse_retry_after

NOW = datetime(2026, 3, 17, 20, tzinfo=UTC)


def test_the_schedule_is_that_of_the_contract():
    pauses = [next_pause(tries, jitter=1.0) for tries in range(1, 9)]
    hours = timedelta(hours=1)
    assert pauses == [
        timedelta(seconds=5), timedelta(minutes=5), timedelta(minutes=30), 2 * hours, 5 * hours, 10 * hours, 10 * hours, None,
    ]  # fmt: skip


@given(tries=st.integers(1, 20), jitter=st.floats(*JITTER), asked=st.none() | st.timedeltas(timedelta(0)))
def test_the_pause_is_bounded(tries, jitter, asked):
    pause = next_pause(tries, jitter=jitter, retry_after=asked)
    if tries >= 8:
        assert pause is None
        return
    plain = next_pause(tries, jitter=jitter)
    assert pause >= plain
    assert pause <= max(plain, MAX_RETRY_AFTER)
    if asked is not None and plain <= asked <= MAX_RETRY_AFTER:
        assert pause == asked


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("120", 120), (" 0 ", 0), ("-1", None), ("1.5", None), ("soon", None), ("9" * 10, None), ("", None),
        ("Tue, 17 Mar 2026 20:02:00 GMT", 120), ("Tue, 17 Mar 2026 19:00:00 GMT", 0), ("²", None),
        ("Tue, 17 Mar 2026 20:02:00 -0000", 120),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header, seconds):
    found = parse_retry_after(header, now=NOW)
    assert found == (None if seconds is None else timedelta(seconds=seconds))
