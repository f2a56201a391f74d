"""Storages of artifacts: a folder, and a bucket of a real S3 server."""

from pathlib import Path

import pytest
from django.core.files.storage import storages

from tests.orchestrator.artifacts.nanio_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, s3_server

FOLDER = "orchestrator.artifacts.storage.ArtifactFileStorage"
S3 = "orchestrator.artifacts.s3_storage.ArtifactS3Storage"


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory):
    """The address of an S3 server, one for all tests of this process."""
    with s3_server(tmp_path_factory.mktemp("nanio")) as url:
        yield url


def use(settings, backend, **options):
    settings.STORAGES = settings.STORAGES | {"artifacts": {"BACKEND": backend, "OPTIONS": options}}
    return storages["artifacts"]


@pytest.fixture
def folder(settings, tmp_path) -> Path:
    """The folder of the storage that is in use."""
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


@pytest.fixture
def bucket(settings, s3_url):
    """The storage of the bucket, which is in use."""
    options = {"bucket_name": BUCKET, "endpoint_url": s3_url, "region_name": REGION}
    return use(settings, S3, access_key=ACCESS_KEY, secret_key=SECRET_KEY, **options)


@pytest.fixture(params=["folder", "bucket"])
def storage(request):
    """Each of both storages."""
    request.getfixturevalue(request.param)
    return storages["artifacts"]
