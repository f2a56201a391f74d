"""Collection: what is deleted, what is kept, and files that a process has locked."""

import os
import re
import time
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.images import collection
from orchestrator.images.blobs import delete_blob, find_blob, mount_blob, touch_blob
from orchestrator.images.collection import Collected, collect_images
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import delete_manifest, find_manifest, push_manifest
from orchestrator.images.models import BlobUpload, ImageBlob, RepositoryBlob
from orchestrator.images.storage import UploadPart, image_storage
from orchestrator.images.uploads import append_part, begin_upload
from tests.orchestrator.images.world import content, manifest, missing_files, part_of, stored, stored_files
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store")]
ALL = timedelta(0)
NOTHING = Collected(0, 0, 0, 0, 0)


def aged(hours=25):
    """Let everything be so old."""
    before = timezone.now() - timedelta(hours=hours)
    RepositoryBlob.objects.update(used_at=before)
    ImageBlob.objects.update(used_at=before)
    BlobUpload.objects.update(updated_at=before)
    for name in stored_files():
        os.utime(image_storage().path(name), (time.time() - hours * 3600,) * 2)


def image(project, tag="v1"):
    config = content()
    stored(project, config)
    return push_manifest(project, manifest(config), OCI_MANIFEST, digest=None, tags=[tag]).digest


def test_an_image_is_kept_for_ever(project):
    digest = image(project)
    aged()
    assert collect_images() == NOTHING
    assert find_manifest(project, digest).read()


def test_a_deleted_image_is_collected_with_its_blobs(project):
    digest = image(project)
    delete_manifest(project, digest)
    aged()
    found = collect_images()
    assert (found.repository_blobs, found.blobs, found.files) == (1, 2, 0)
    assert (stored_files(), ImageBlob.objects.count()) == ([], 0)


def test_a_deleted_tag_deletes_no_image(project):
    digest = image(project)
    delete_manifest(project, "v1")
    aged()
    assert collect_images() == NOTHING
    assert find_manifest(project, digest)


def test_what_was_used_lately_is_kept(project):
    digest = stored(project, content())
    append_part(project, begin_upload(project).uuid, part_of(content()))
    aged(23)
    assert collect_images() == NOTHING
    assert find_blob(project, digest)


def test_an_abandoned_upload_is_deleted_with_its_parts(project):
    append_part(project, begin_upload(project).uuid, part_of(content()))
    aged()
    assert collect_images() == Collected(1, 0, 0, 0, 0)
    assert stored_files() == []


def test_the_parts_of_a_living_upload_are_kept_however_old_their_files_are(project):
    append_part(project, begin_upload(project).uuid, part_of(content()))
    aged()
    BlobUpload.objects.update(updated_at=timezone.now())
    assert collect_images() == NOTHING
    assert len(stored_files()) == 1


def test_a_blob_of_another_repository_is_kept(project):
    other = new_project("foreign")
    data = content()
    digest = stored(project, data)
    stored(other, data)
    delete_blob(project, digest)
    aged()
    RepositoryBlob.objects.filter(project=other).update(used_at=timezone.now())
    assert collect_images() == NOTHING
    assert find_blob(other, digest)


def test_a_client_that_asked_for_a_blob_before_its_push_finds_it(project):
    """Docker uploads no blob that HEAD has found, and pushes its manifest later."""
    digest = stored(project, content())
    aged()
    touch_blob(project, digest)
    assert collect_images() == NOTHING


def test_a_mounted_blob_is_recent(project):
    other = new_project("foreign")
    digest = stored(project, content())
    aged()
    assert mount_blob(other, digest, [project])
    assert collect_images().blobs == 0
    assert find_blob(other, digest)


def test_files_without_a_row_are_deleted_by_age(project):
    part = part_of(content())
    part.keep()
    part.discard()
    assert collect_images() == NOTHING
    aged()
    assert collect_images() == Collected(0, 0, 0, 1, 0)
    assert stored_files() == []


def test_a_file_that_is_being_received_is_kept_at_any_age(project):
    part = part_of(content())
    assert collect_images(ALL) == NOTHING
    part.keep()
    part.discard()
    assert collect_images(ALL).files == 1


def test_a_file_is_recreated_if_collection_was_faster_than_its_lock(project, monkeypatch):
    storage = image_storage()
    real, calls = os.fdopen, []

    def collected_first(descriptor, mode):
        calls.append(descriptor)
        if len(calls) == 1:
            for name in stored_files():
                storage.remove(name)
        return real(descriptor, mode)

    monkeypatch.setattr("orchestrator.images.storage.os.fdopen", collected_first)
    part = UploadPart()
    part.write(b"x")
    assert (len(calls), stored_files()) == (2, [part.name])
    part.discard()


def test_a_row_that_appears_under_the_lock_keeps_its_file(project):
    part = part_of(content())
    name = part.name
    part.keep()
    part.discard()
    assert image_storage().remove_unless(name, lambda: True) is False
    assert stored_files() == [name]
    assert image_storage().remove_unless(name, lambda: False) is True
    assert image_storage().remove_unless(name, lambda: False) is False


def test_the_command_reports_what_it_deleted(project, capsys):
    append_part(project, begin_upload(project).uuid, part_of(content()))
    stored(project, content(1500))
    aged()
    call_command("collectimages")
    expected = "1 uploads, 1 blobs of repositories, 1 contents (1,500 bytes) and 0 files deleted.\n"
    assert capsys.readouterr().out == expected
    assert missing_files() == set()


@pytest.mark.parametrize("hours", ["-1", "9000"])
def test_the_command_refuses_a_wrong_age(db, hours):
    with pytest.raises(CommandError, match="from 0 to 8760"):
        call_command("collectimages", f"--hours={hours}")


class TestMany:
    """Collection reads each row and folder once, however many there are."""

    def test_each_batch_begins_behind_the_last(self, project, monkeypatch):
        """Once each batch read all rows before it: a hundred thousand took minutes."""
        for _ in range(3):
            stored(project, content())
        aged()
        monkeypatch.setattr(collection, "ROWS_PER_TRANSACTION", 1)
        with CaptureQueriesContext(connection) as queries:
            found = collect_images()
        assert (found.repository_blobs, found.blobs) == (3, 3)
        for table in ("image_repository_blobs", "image_blobs"):
            locks = [query["sql"] for query in queries if f'FOR UPDATE OF "{table}"' in query["sql"]]
            positions = [re.findall(rf'"{table}"."id" > (\d+)', sql) for sql in locks]
            assert len(locks) == 4
            assert len({position for (position,) in positions}) == 4

    def test_an_index_finds_the_rows_of_files(self):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
        plan = ImageBlob.objects.filter(file__in=["blobs/a", "blobs/b"]).values_list("file").explain()
        assert "image_blobs_by_file" in plan

    def test_one_folder_is_read_at_a_time(self, store):
        for name in ("aa", "bb"):
            (store / "blobs" / name).mkdir(parents=True)
        (store / "blobs" / "aa" / "x").touch()
        files = image_storage().files("blobs")
        assert next(files)[0] == "blobs/aa/x"
        (store / "blobs" / "bb" / "y").touch()
        assert [name for name, _ in files] == ["blobs/bb/y"]
