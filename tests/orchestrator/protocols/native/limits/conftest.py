"""Callers: operators in a browser, and a program of another organization."""

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, PoolFactory, ProjectFactory, api_token
from tests.orchestrator.protocols.native.limits.limit_requests import Browser
from workers.models import Pool


@pytest.fixture
def olga(organization) -> Browser:
    """An operator who may everything here."""
    may = ("runtime_jobs.operate_job", "runtime_jobs.change_organization", "workers.change_pool")
    return Browser("olga", *may)


@pytest.fixture
def vera(organization) -> Browser:
    """Staff who may only look."""
    return Browser("vera", "runtime_jobs.view_job")


@pytest.fixture
def pool(db) -> Pool:
    return PoolFactory()


@pytest.fixture
def stranger(organization) -> Caller:
    """A program of another organization, with every scope."""
    other = OrganizationFactory(slug="other")
    ProjectFactory(organization=other)
    return Caller(api_token(other))
