"""A server on localhost with one hardware spec, a project with a member, and an anonymous caller."""

import pytest

from tests.api_client import Caller
from tests.orchestrator.protocols.bencher.runs.world import new_person, new_project, new_spec
from tests.suite_functions import audit_findings


@pytest.fixture(autouse=True)
def server(settings):
    settings.PUBLIC_URL, settings.ANONYMOUS_RUNS = "http://localhost:61016", True


@pytest.fixture(autouse=True)
def audited(db):
    """Whatever clients send, the invariants hold after it."""
    yield
    assert audit_findings(chains=True) == []


@pytest.fixture
def spec(db):
    return new_spec()


@pytest.fixture
def project(db):
    return new_project("adapter")


@pytest.fixture
def mia(project) -> Caller:
    """A member of the organization of the project."""
    return new_person("mia", project.organization).caller


@pytest.fixture
def stranger(db) -> Caller:
    return new_person("stranger").caller


@pytest.fixture
def anyone(db) -> Caller:
    return Caller()
