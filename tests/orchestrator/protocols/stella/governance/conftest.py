"""The callers of document 004's API: a tenant's program, another tenant's, and an operator in a browser."""

import pytest

from runtime_jobs.models import Organization
from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, api_token
from tests.orchestrator.protocols.native.limits.limit_requests import Browser


@pytest.fixture
def demo(db) -> Organization:
    found = OrganizationFactory(slug="demo")
    ProjectFactory(organization=found)
    return found


@pytest.fixture
def alice(demo) -> Caller:
    """A program of the tenant, with every scope."""
    return Caller(api_token(demo))


@pytest.fixture
def stranger(demo) -> Caller:
    """A program of another tenant, with every scope."""
    other = OrganizationFactory(slug="other")
    ProjectFactory(organization=other)
    return Caller(api_token(other))


@pytest.fixture
def olga(demo) -> Browser:
    """An operator who may everything here."""
    return Browser("olga", "runtime_jobs.operate_job", "runtime_jobs.change_organization", "workers.change_pool")
