"""Two tenants with a repository each, and clients that may pull and push."""

import pytest

from tests.orchestrator.images.world import Docker, storages_in, token
from tests.orchestrator.protocols.bencher.runs.world import new_project


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.PUBLIC_URL = "http://localhost:61016"
    settings.STORAGES = storages_in(settings, tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture
def project(db):
    return new_project("adapter")


@pytest.fixture
def other(db):
    """A project of another organization."""
    return new_project("foreign")


@pytest.fixture
def docker(project):
    """A client that may pull and push images of `adapter`."""
    return Docker(token(project))


@pytest.fixture
def stranger(other):
    """A client of the other organization."""
    return Docker(token(other))
