"""Runners and their jobs: a pool that trusts lease ids, a worker in it, a job of type `steps`."""

import pytest

from runtime_jobs.identifiers import new_lease_id
from tests.api_client import Caller
from tests.factories import OrganizationFactory, PoolFactory, ProjectFactory, WorkerFactory, submitted_steps
from tests.orchestrator.protocols.delta.messages import Held
from tests.suite_functions import audit_findings


@pytest.fixture(autouse=True)
def audited(request):
    """Whatever runners say, the invariants hold after it."""
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture
def worker(project):
    """Of a pool that trusts no lease id."""
    return WorkerFactory(slug="local-worker", pool=PoolFactory())


@pytest.fixture
def wendy(worker) -> Caller:
    """Its runner, with a token."""
    return Caller(worker.token)


@pytest.fixture
def granted(project, worker, wendy):
    """A job on a lease that its runner has not acknowledged yet."""
    submitted_steps(project)
    return Held(wendy, worker)


@pytest.fixture
def held(granted):
    """One that it has."""
    assert granted.say("runner_ack_lease").status_code == 200
    return granted


@pytest.fixture
def unknown() -> str:
    return new_lease_id()
