"""A mirrored repository with three commits."""

import copy
import shutil

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


@pytest.fixture(scope="session")
def _origin(tmp_path_factory):
    found = Origin(tmp_path_factory.mktemp("origin") / "web.git")
    found.commits = [found.commit({"README": b"1\n"})]
    for number in (2, 3):
        found.commits.append(found.commit({"README": b"%d\n" % number}, parent=found.commits[-1]))
    return found


@pytest.fixture
def origin(_origin, folders):
    """Its `commits`: the first one, the one before the last, and the last one of `main`.

    A copy: git runs 16 times for the commits.
    """
    found = copy.copy(_origin)
    found.path, found.commits = folders / "origins" / "web.git", list(_origin.commits)
    shutil.copytree(_origin.path, found.path)
    return found
