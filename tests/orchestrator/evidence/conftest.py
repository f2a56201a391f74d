"""A tenant with a project and a client, and signing keys and artifacts in folders of the test."""

import pytest

from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token
from tests.orchestrator.artifacts.conftest import FOLDER, use


@pytest.fixture(autouse=True)
def folders(settings, tmp_path):
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), slug="web")


@pytest.fixture
def alice(project):
    return Caller(api_token(project.organization))


@pytest.fixture
def worker(project):
    return WorkerFactory()
