"""Contract 1.4: connects and claims of runners, requests and runs of callers, counted over all processes."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from orchestrator.http.errors.problems import ApiError
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.bencher.request_rates import register_connect
from orchestrator.results.models import Report
from tests.api_client import Caller
from tests.factories import ProjectFactory, RunnerFactory, personal_key, project_key
from tests.orchestrator.protocols.bencher.conftest import error_of, make_server_admin
from tests.orchestrator.protocols.bencher.runs.world import (
    BMF,
    accepted,
    direct_body,
    new_person,
    new_project,
    post_run,
)

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
    text = f"Too many requests for runner per {name}. Please, try again later. The limit is 1."
    assert caught.value.detail == text
    assert caught.value.headers == {"Retry-After": str(seconds - 10)}


def test_the_shortest_full_period_is_named(runner, settings):
    def refusal_of(limits: tuple[int, int, int], at: datetime) -> str | None:
        for (name, _), limit in zip(PERIODS, limits, strict=True):
            setattr(settings, f"RUNNER_CONNECTS_PER_{name.upper()}", limit)
        try:
            register_connect(runner, now=at)
        except ApiError as error:
            return error.detail.partition(" per ")[2].partition(".")[0]
        return None

    assert [refusal_of((10, 2, 2), MIDNIGHT) for _ in range(3)] == [None, None, "hour"]
    later = MIDNIGHT + timedelta(hours=2)
    assert [refusal_of((1, 10, 2), later) for _ in range(2)] == ["day", "minute"]


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


# --- people and projects ----------------------------------------------------------------------------------------------


def limited(call: Any) -> str:
    """The message of the 429 that the call gets, in the envelope and with the time to wait."""
    response = call()
    message = error_of(response, 429)["message"]
    assert 1 <= int(response["Retry-After"]) <= 60
    return message


def test_requests_of_a_caller_are_limited(settings, ada):
    settings.CALLER_REQUESTS_PER_MINUTE = 3
    statuses = [ada.get(path).status_code for path in ("/v0/specs", "/v0/runners", "/v0/nowhere", "/v0/specs")]
    assert statuses == [200, 200, 404, 200], "an address that does not exist is no request of the API"
    message = limited(lambda: ada.get("/v0/specs"))
    assert message == "Too many requests for user per minute. Please, try again later. The limit is 3."
    other = Caller(personal_key(make_server_admin("bob")))
    assert other.get("/v0/specs").status_code == 200, "each caller has its own limit"
    assert ada.call("OPTIONS", "/v0/specs").status_code == 200


def test_requests_with_the_keys_of_a_project_are_limited_together(settings):
    settings.CALLER_REQUESTS_PER_MINUTE = 2
    project = ProjectFactory(slug="web")
    first, second = Caller(project_key(project)), Caller(project_key(project))
    path = f"/v0/projects/{project.uuid}/reports"
    assert [caller.get(path).status_code for caller in (first, second)] == [200, 200]
    limited(lambda: first.get(path))
    limited(lambda: second.get(path))


def test_anonymous_requests_are_not_counted(settings):
    settings.CALLER_REQUESTS_PER_MINUTE = 1
    project = ProjectFactory(slug="web", visibility="public")
    assert [Caller().get(f"/v0/projects/{project.uuid}/reports").status_code for _ in range(3)] == [200] * 3


def test_runs_of_a_person_and_of_a_project_are_limited(settings):
    settings.AUTHENTICATED_RUNS_PER_MINUTE = 2
    mine, other = new_project("adapter"), new_project("other")
    mia, joe = new_person("mia", mine.organization, other.organization), new_person("joe", mine.organization)
    accepted(mia.caller, direct_body(BMF))
    accepted(joe.caller, direct_body(BMF))
    message = limited(lambda: post_run(Caller(project_key(mine)), direct_body(BMF)))
    assert message == "Too many requests for claimed run per minute. Please, try again later. The limit is 2."
    limited(lambda: post_run(joe.caller, direct_body(BMF)))
    accepted(mia.caller, direct_body(BMF, project="other"))
    limited(lambda: post_run(mia.caller, direct_body(BMF, project="other")))
    assert Report.objects.count() == 3


def test_runs_of_strangers_do_not_count_for_a_project(settings):
    settings.AUTHENTICATED_RUNS_PER_MINUTE = 2
    project = new_project("adapter", visibility="public")
    for name in ("eve", "mallory"):
        assert post_run(new_person(name).caller, direct_body(BMF)).status_code == 403
    mia = new_person("mia", project.organization)
    assert [post_run(mia.caller, direct_body(BMF)).status_code for _ in range(2)] == [201, 201]


def test_without_limits_no_request_is_counted(ada):
    ada.get("/v0/specs")
    assert not ThrottleWindow.objects.exists()
