"""A bare repository as the origin, and a repository of the installation that follows it."""

import pytest

from orchestrator.processes import housekeeping_catalogue
from tests.orchestrator.repositories.world import Origin, added, mirrored
from tests.suite_functions import audit_findings


@pytest.fixture(autouse=True)
def folders(settings, tmp_path):
    """The folders of the settings: origins are permitted below `tmp_path/origins`."""
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    housekeeping_catalogue.load()
    return tmp_path


@pytest.fixture(autouse=True)
def audited(request):
    """Check the invariants after each test."""
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


@pytest.fixture
def origin(folders):
    return Origin(folders / "origins" / "web.git")


@pytest.fixture
def unmirrored(origin, db):
    """A repository without a mirror."""
    return added(origin.path)


@pytest.fixture
def repository(origin, db):
    """A repository with a mirror of a first commit without workflows."""
    origin.commit({"README": b"first"})
    return mirrored(origin)
