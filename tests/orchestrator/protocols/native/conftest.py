"""The cast of the native API's tests: an organization, a client of it, a worker."""

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token


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
