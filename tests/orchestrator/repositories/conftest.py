"""A folder of origins, and a folder of mirrors, for each test."""

import pytest

from tests.orchestrator.repositories.world import Origin


@pytest.fixture(autouse=True)
def folders(settings, tmp_path):
    """The folders of the settings: origins are permitted below `tmp_path/origins`."""
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    return tmp_path


@pytest.fixture
def origin(folders):
    return Origin(folders / "origins" / "web.git")
