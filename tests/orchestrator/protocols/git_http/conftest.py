"""A mirrored repository with three commits."""

import pytest

from tests.orchestrator.protocols.git_http.world import ROOT_KEY
from tests.orchestrator.repositories.world import Origin


@pytest.fixture(autouse=True)
def folders(settings, tmp_path):
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    settings.ACTIONS_ROOT_KEY = ROOT_KEY
    return tmp_path


@pytest.fixture
def origin(folders):
    """Its `commits`: the first one, the one before the last, and the last one of `main`."""
    origin = Origin(folders / "origins" / "web.git")
    origin.commits = [origin.commit({"README": b"1\n"})]
    for number in (2, 3):
        origin.commits.append(origin.commit({"README": b"%d\n" % number}, parent=origin.commits[-1]))
    return origin
