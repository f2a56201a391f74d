"""Contract 1.4: connects and claims of one runner, counted over all processes."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.rate_limits import register_connect
from tests.factories import RunnerFactory

pytestmark = pytest.mark.django_db
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
PERIODS = [("minute", 60), ("hour", 3600), ("day", 86400)]


def admitted(runner, at: datetime, times: int = 1) -> int:
    """The number of calls that are admitted."""
    found = 0
    for _ in range(times):
        try:
            register_connect(runner, now=at)
        except ApiError as error:
            if error.status != 429:
                raise
        else:
            found += 1
    return found


@pytest.fixture(params=PERIODS, ids=lambda period: period[0])
def period(request, settings):
    """A limit of 8 in one period; its length in seconds."""
    name, seconds = request.param
    setattr(settings, f"RUNNER_CONNECTS_PER_{name.upper()}", 8)
    return timedelta(seconds=seconds)


def test_zero_is_off_and_costs_no_query(runner, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert admitted(runner, MIDNIGHT, 100) == 100


def test_the_limit_of_a_period_is_kept(runner, period):
    assert admitted(runner, MIDNIGHT, 10) == 8
    assert admitted(runner, MIDNIGHT + period * 0.99, 10) == 0


def test_each_runner_has_its_own_limit(runner, period):
    assert admitted(runner, MIDNIGHT, 9) == 8
    assert admitted(RunnerFactory(), MIDNIGHT, 9) == 8


def test_the_window_slides(runner, period):
    """A refused call counts too: 9 calls in the period before, of which the share within the window counts."""
    assert admitted(runner, MIDNIGHT, 9) == 8
    assert admitted(runner, MIDNIGHT + period, 1) == 0
    assert admitted(runner, MIDNIGHT + period * 1.5, 4) == 2
    assert admitted(runner, MIDNIGHT + period * 3, 9) == 8


def test_a_period_without_calls_is_forgotten(runner, period):
    assert admitted(runner, MIDNIGHT, 8) == 8
    assert admitted(runner, MIDNIGHT + period * 2, 8) == 8


@pytest.mark.parametrize(("name", "seconds"), PERIODS)
def test_the_message_names_the_period_and_says_when_to_try_again(runner, settings, name, seconds):
    setattr(settings, f"RUNNER_CONNECTS_PER_{name.upper()}", 1)
    register_connect(runner, now=MIDNIGHT)
    with pytest.raises(ApiError) as caught:
        register_connect(runner, now=MIDNIGHT + timedelta(seconds=10))
    assert caught.value.detail == f"Too many requests for runner per {name}. Please, try again later."
    assert caught.value.headers == {"Retry-After": str(seconds - 10)}


@pytest.mark.django_db(transaction=True)
def test_processes_count_together(settings):
    settings.RUNNER_CONNECTS_PER_MINUTE = 16
    runner, found = RunnerFactory(), []

    def connect():
        try:
            found.append(admitted(runner, MIDNIGHT, 10))
        finally:
            connection.close()

    threads = [threading.Thread(target=connect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == 16
