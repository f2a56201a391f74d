"""A tenant with one enabled project, a client with all scopes, and a worker that understands all types."""

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token


@pytest.fixture
def organization():
    return OrganizationFactory(slug="acme-corp")


@pytest.fixture
def project(organization):
    return ProjectFactory(organization=organization)


@pytest.fixture
def alice(project):
    return Caller(api_token(project.organization))


@pytest.fixture
def intruder():
    return Caller(api_token(ProjectFactory(organization=OrganizationFactory(slug="intruder")).organization))


@pytest.fixture
def worker():
    return WorkerFactory()
