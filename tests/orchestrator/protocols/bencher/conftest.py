"""Callers of the Bencher API: a server admin, another person, a runner; and what every refusal looks like."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from orchestrator.http.auth.authentication import refusals
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import HardwareSpecFactory, RunnerFactory, personal_key

CORS_OF_ERRORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
    "access-control-expose-headers": "X-Total-Count",
}
ABSENT = "00000000-0000-0000-0000-000000000099"


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    """Each test starts without refused keys of earlier ones."""
    fresh = FailedAuthThrottle(clock=lambda: 30.0)
    for name in ("wait", "count", "accept"):
        monkeypatch.setattr(refusals, name, getattr(fresh, name))


def make_server_admin(name: str = "ada") -> User:
    """Staff with the only permission that counts."""
    user = User.objects.create(username=name, is_staff=True)
    user.user_permissions.add(Permission.objects.get(content_type__app_label="workers", codename="change_worker"))
    return user


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The envelope of a refusal, which it must be."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["Content-Type"] == "application/json"
    document = response.json()
    assert set(document) <= {"request_id", "message", "error_code"}
    assert document["request_id"] == response["x-request-id"] != ""
    assert document["message"]
    assert response.content.startswith(b'{\n  "'), "errors are pretty-printed"
    assert {name: response[name] for name in CORS_OF_ERRORS} == CORS_OF_ERRORS
    return document


def refused(call: Any, status: int) -> str:
    """Make the call, expect this refusal, and that every row is as before. Returns the message."""
    with nothing_lost():
        response = call()
    return error_of(response, status)["message"]


@pytest.fixture
def ada(db) -> Caller:
    """A server admin."""
    return Caller(personal_key(make_server_admin()))


@pytest.fixture
def uma(db) -> Caller:
    """A person who is no server admin."""
    return Caller(personal_key(User.objects.create(username="uma")))


@pytest.fixture
def runner(db):
    """A runner without specs; `runner.token` is its key."""
    return RunnerFactory(slug="rack-7", name="Rack 7")


@pytest.fixture
def spec(db):
    return HardwareSpecFactory(slug="two-cores", name="Two cores")
