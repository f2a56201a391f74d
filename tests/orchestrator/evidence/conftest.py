"""A tenant with a project and a client, and keys, artifacts and copies of checkpoints in folders of the test."""

from pathlib import Path

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token
from tests.orchestrator.artifacts.conftest import FOLDER, use


@pytest.fixture(autouse=True)
def folders(settings, tmp_path) -> Path:
    """Use folders of the test. Returns the one of the copies of checkpoints."""
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")
    settings.CHECKPOINT_DIR = str(tmp_path / "checkpoints")
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return tmp_path / "checkpoints"


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), slug="web")


@pytest.fixture
def alice(project):
    return Caller(api_token(project.organization))


@pytest.fixture
def worker(project):
    return WorkerFactory()
