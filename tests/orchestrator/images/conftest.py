"""A store of images in a folder of the test."""

import pytest

from tests.orchestrator.images.world import discard_parts, storages_in
from tests.orchestrator.protocols.bencher.runs.world import new_project


@pytest.fixture
def store(settings, tmp_path):
    settings.STORAGES = storages_in(settings, tmp_path / "images")
    yield tmp_path / "images"
    discard_parts()


@pytest.fixture
def project(db):
    return new_project("adapter")
