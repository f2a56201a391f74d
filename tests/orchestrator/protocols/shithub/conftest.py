"""A registered runner, a workflow run, and what every refusal of this protocol looks like."""

import base64
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.core import counters
from orchestrator.http.auth.authentication import refusals
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.job_tokens.models import UsedToken
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.stories.scene import Installation, installation
from tests.orchestrator.protocols.shithub.world import RegisteredRunner, StartedRun, register, start_run
from tests.shared_rows import SharedRows, prepare, shared_rows

ROOT_KEY = base64.b64encode(b"\x42" * 32).decode()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    prepare(item)


@pytest.fixture
def counted(monkeypatch) -> list[counters.CounterValue]:
    """Everything that is counted, in order. Nothing is written."""
    return _count(monkeypatch)


def _count(monkeypatch: pytest.MonkeyPatch) -> list[counters.CounterValue]:
    found: list[counters.CounterValue] = []
    monkeypatch.setattr(counters._buffer, "add", lambda values, number=1: found.extend(list(values) * number))
    return found


@pytest.fixture(autouse=True)
def _no_counter_thread(counted) -> None:
    """No thread of its own writes counters while a test runs."""


@pytest.fixture(autouse=True)
def _unthrottled(monkeypatch) -> None:
    """Invalid tokens of earlier tests do not throttle the network of this one."""
    _begin_unthrottled(monkeypatch)


def _begin_unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = FailedAuthThrottle(clock=lambda: 30.0)
    for name in ("wait", "count", "accept"):
        monkeypatch.setattr(refusals, name, getattr(fresh, name))


@pytest.fixture
def runner(db) -> RegisteredRunner:
    """A runner of capacity 1."""
    return register()


@pytest.fixture
def run(db) -> StartedRun:
    """A run with one queued job of two steps."""
    return start_run()


@pytest.fixture(scope="module")
def _shared_claim(django_db_setup, django_db_blocker) -> Iterator[SharedRows]:
    """A job of two steps that a runner of capacity 1 has claimed and not begun."""

    def build() -> ClaimedJobClient:
        with pytest.MonkeyPatch.context() as monkeypatch:
            _count(monkeypatch)
            _begin_unthrottled(monkeypatch)
            runner = register()
            start_run()
            return runner.client.claim()

    # The lease has 60 s, and the test may be slow.
    with shared_rows("_shared_claim", build, django_db_blocker, max_age=15.0) as rows:
        yield rows


@pytest.fixture
def granted(_shared_claim, db) -> ClaimedJobClient:
    """A job that its runner has claimed and not begun, some seconds ago at most. It is alone in the database."""
    found = copy.copy(_shared_claim.value)
    found.tokens = [found.token]
    return found


@pytest.fixture
def claimed(granted) -> ClaimedJobClient:
    """A job in execution, whose lease has just been renewed."""
    assert granted.run().status_code == 200
    return granted


def error_of(response: Any, status: int) -> str:
    """The text of a refusal, which must have the shape of this protocol."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["Content-Type"] == "application/json; charset=utf-8"
    assert response["Cache-Control"] == "no-store"
    assert response.content.endswith(b"\n")
    document = response.json()
    assert set(document) == {"error"}
    assert isinstance(document["error"], str)
    assert document["error"]
    return document["error"]


def used_tokens() -> int:
    """The number of used tokens."""
    return UsedToken.objects.count()


@pytest.fixture(scope="module")
def _shared_installation(database_url, tmp_path_factory) -> Iterator[Installation]:
    """One server for the stories of a module."""
    with installation(tmp_path_factory.mktemp("stories"), database_url, ROOT_KEY) as found:
        yield found


@pytest.fixture
def story_installation(_shared_installation, settings) -> Installation:
    """An installation with a running server, and its settings in this process."""
    for name in ("ACTIONS_ROOT_KEY", "REPOSITORY_ROOT", "MIRROR_DIR", "PUBLIC_URL"):
        setattr(settings, name, _shared_installation.environment[name])
    if not _shared_installation.lives:
        _shared_installation.start_server()
    return _shared_installation
