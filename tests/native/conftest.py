"""The cast of the native API's tests: an organization, a client of it, a worker."""

import json
from typing import Any

import pytest
from django.test import Client

from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token


class Caller:
    """A test client that speaks JSON with one token."""

    def __init__(self, token: str | None) -> None:
        self.http = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **headers: str) -> Any:
        return self.http.get(path, headers=self.headers | headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return self.http.post(path, raw, content_type="application/json", headers=self.headers | headers)


@pytest.fixture
def organization(db):
    found = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=found)
    return found


@pytest.fixture
def alice(organization) -> Caller:
    """A program of the organization, with every scope."""
    return Caller(api_token(organization))


@pytest.fixture
def worker(db):
    return WorkerFactory()


@pytest.fixture
def wendy(worker) -> Caller:
    """The worker, as it calls."""
    return Caller(worker.token)
