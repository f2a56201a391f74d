"""Contents whose file was lost, as after a backup of the folder that is older than the dump: a push repairs them."""

import pytest

from orchestrator.images.blobs import find_blob, mount_blob
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import find_manifest, push_manifest
from orchestrator.images.models import ImageBlob
from orchestrator.images.storage import image_storage
from tests.orchestrator.images.world import (
    content,
    manifest,
    missing_files,
    refusal,
    stored,
    stored_files,
    unnamed_files,
)
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store")]


def lose(digest):
    image_storage().remove(ImageBlob.objects.get(digest=str(digest)).file)


def cut(digest):
    """Shorten the file, as a copy that was interrupted."""
    with image_storage().open(ImageBlob.objects.get(digest=str(digest)).file, "r+b") as file:
        file.truncate(10)


@pytest.mark.parametrize("damage", [lose, cut])
def test_a_push_repairs_a_blob_for_all_repositories(project, damage):
    other = new_project("foreign")
    data = content()
    digest = stored(project, data)
    stored(other, data)
    damage(digest)
    stored(other, data)
    with image_storage().open(find_blob(project, digest).file) as file:
        assert file.read() == data
    assert missing_files() == set()


def test_an_intact_file_is_kept_and_the_second_one_deleted(project):
    data = content()
    stored(project, data)
    before = stored_files()
    stored(project, data)
    assert (stored_files(), unnamed_files()) == (before, set())


@pytest.mark.parametrize("damage", [lose, cut])
def test_a_damaged_blob_is_answered_as_unknown_so_that_clients_push_it(project, damage):
    """Docker and skopeo push no blob that HEAD has found, or that a mount has made."""
    other = new_project("foreign")
    digest = stored(project, content())
    damage(digest)
    assert refusal(lambda: find_blob(project, digest)) == (404, "BLOB_UNKNOWN")
    assert not mount_blob(other, digest, [project])


def test_a_push_repairs_a_manifest(project):
    config = content()
    stored(project, config)
    document = manifest(config)
    push = lambda: push_manifest(project, document, OCI_MANIFEST, digest=None, tags=["v1"]).digest  # noqa: E731
    digest = push()
    lose(digest)
    assert refusal(lambda: find_manifest(project, "v1")) == (404, "MANIFEST_UNKNOWN")
    assert push() == digest
    assert find_manifest(project, "v1").read() == document
    assert missing_files() == set()
