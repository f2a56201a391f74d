"""GitHub, as it calls: a payload from a file, signed over its bytes."""

import functools
import hashlib
import hmac
import json
import uuid
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.test import Client

from orchestrator.core.cause import Cause
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.protocols.github import authentication
from orchestrator.services import credentials
from tests.factories import OPERATOR, OrganizationFactory, ProjectFactory
from tests.suite_functions import audit_findings

PATH = "/api/v1/webhooks/github"
DELIVERIES = Path(__file__).parent / "deliveries"
COMMIT = "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf"


def payload(name: str) -> dict:
    return json.loads((DELIVERIES / f"{name}.json").read_text())


def signature(secret: str, raw: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()


def new_secret(project) -> str:
    secret = credentials.rotate_webhook_secret(project_id=project.pk, cause=Cause(OPERATOR, "connect"))[1]
    project.refresh_from_db()
    return secret


def deliver(name, secret, *, body=None, raw=None, form=False, changes=(), **headers):
    """Send the recorded delivery, or this body under its event. `changes`: headers to replace; None leaves one out."""
    if raw is None:
        raw = json.dumps(payload(name) if body is None else body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        raw = urlencode({"payload": raw}).encode() if form else raw
    sent = {
        "X-GitHub-Event": name.partition(".")[0],
        "X-GitHub-Delivery": str(uuid.uuid4()),
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": signature(secret, raw),
        "User-Agent": "GitHub-Hookshot/8b8a1f2",
    } | dict(changes)
    kind = headers.pop("content_type", "application/x-www-form-urlencoded" if form else "application/json")
    kept = {header: value for header, value in sent.items() if value is not None}
    return Client(raise_request_exception=False).generic("POST", PATH, raw, content_type=kind, headers=kept)


@pytest.fixture(autouse=True)
def no_flood(monkeypatch):
    monkeypatch.setattr(
        authentication, "throttle", FailedAuthThrottle(clock=lambda: 30.0, good_seconds=authentication.GOOD_SECONDS)
    )


@pytest.fixture(autouse=True)
def audited(request):
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


@pytest.fixture
def project(db):
    return ready()


def ready(slug: str = "sandtrace", **changes):
    values = {"configured_command": ["pnpm", "install"], "configured_network": True, "push_enabled": True}
    return ProjectFactory(organization=OrganizationFactory(slug=slug), **values | changes)


@pytest.fixture
def secret(project) -> str:
    return new_secret(project)


@pytest.fixture
def github(secret):
    """`github("push.branch")` delivers, signed with the project's secret."""
    return functools.partial(_as_github, secret)


def _as_github(secret, name, **rest):
    return deliver(name, secret, **rest)
