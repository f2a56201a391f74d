"""Uploads that no client continues: which end at once, which give their slot away, and which a client can cancel."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.test import TestCase
from django.utils import timezone

from orchestrator.images import uploads
from orchestrator.images.digests import Digest
from orchestrator.images.models import BlobUpload, ImageBlob
from orchestrator.images.storage import UploadPart
from orchestrator.images.uploads import append_part, begin_upload, cancel_upload, complete_upload, store_blob
from tests.orchestrator.images.world import (
    content,
    discard_parts,
    part_of,
    refusal,
    stored,
    stored_files,
    unnamed_files,
)
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store")]


def rest(upload, seconds):
    """Let the upload be untouched for some seconds."""
    BlobUpload.objects.filter(uuid=upload.uuid).update(updated_at=timezone.now() - timedelta(seconds=seconds))


@pytest.mark.parametrize("quota", [1000, 0])
def test_a_refused_blob_of_one_request_keeps_no_slot(project, settings, quota):
    settings.IMAGE_QUOTA_BYTES, settings.IMAGE_MAX_UPLOADS = quota, 2
    digest = Digest.of(b"other")
    expected = (403, "DENIED") if quota else (400, "DIGEST_INVALID")
    for _ in range(3):
        assert refusal(lambda: store_blob(project, part_of(content(5000)), digest)) == expected
    discard_parts()
    assert (BlobUpload.objects.count(), stored_files()) == (0, [])


class TestFullSlots:
    @pytest.fixture(autouse=True)
    def limit(self, settings):
        settings.IMAGE_MAX_UPLOADS, settings.IMAGE_UPLOAD_SECONDS = 2, 600

    def test_the_uploads_that_no_request_can_be_sending_are_ended(self, project):
        old, recent = begin_upload(project), begin_upload(project)
        append_part(project, old.uuid, part_of(content()))
        rest(old, 700)
        rest(recent, 590)
        with TestCase.captureOnCommitCallbacks(execute=True):
            begin_upload(project)
        assert not BlobUpload.objects.filter(uuid=old.uuid).exists()
        assert BlobUpload.objects.filter(uuid=recent.uuid).exists()
        assert stored_files() == []
        assert refusal(lambda: begin_upload(project)) == (429, "TOOMANYREQUESTS")

    def test_those_of_another_organization_are_kept(self, project):
        foreign = begin_upload(new_project("foreign"))
        rest(foreign, 7000)
        for _ in range(2):
            begin_upload(project)
        assert refusal(lambda: begin_upload(project)) == (429, "TOOMANYREQUESTS")
        assert BlobUpload.objects.filter(uuid=foreign.uuid).exists()

    def test_while_slots_are_free_a_client_may_pause(self, project):
        paused = begin_upload(project)
        rest(paused, 7000)
        begin_upload(project)
        append_part(project, paused.uuid, part_of(content()))


class TestFailureOfTheLastTransaction:
    def fail(self, project, monkeypatch, data):
        """Complete an upload whose last transaction fails."""
        upload = begin_upload(project)

        def lose_the_connection(*_):
            raise OperationalError("server closed the connection")

        monkeypatch.setattr(uploads, "insert_blob", lose_the_connection)
        with pytest.raises(OperationalError):
            complete_upload(project, upload.uuid, part_of(data), Digest.of(data))
        monkeypatch.undo()
        return upload

    def test_the_upload_ends_and_the_client_can_repeat_it(self, project, monkeypatch, settings):
        settings.IMAGE_QUOTA_BYTES = 1000
        data = content(800)
        for _ in range(3):
            self.fail(project, monkeypatch, data)
            assert BlobUpload.objects.count() == 0
        assert stored(project, data)

    def test_its_file_stays_because_the_row_may_exist(self, project, monkeypatch):
        self.fail(project, monkeypatch, content())
        assert (len(stored_files("blobs")), len(unnamed_files())) == (1, 1)

    def test_the_error_of_the_transaction_is_reported_if_the_upload_cannot_be_ended(self, project, monkeypatch):
        def is_down(*_):
            raise OperationalError("still down")

        with monkeypatch.context() as patch:
            patch.setattr(uploads, "_end", is_down)
            upload = begin_upload(project)
            patch.setattr(uploads, "insert_blob", lambda *_: (_ for _ in ()).throw(OperationalError("first")))
            with pytest.raises(OperationalError, match="first"):
                complete_upload(project, upload.uuid, part_of(b"x"), Digest.of(b"x"))
        assert BlobUpload.objects.get().is_completing


class TestDeadProcess:
    """A process that died while it verified the content leaves its upload as completing."""

    @pytest.fixture
    def upload(self, project):
        upload = begin_upload(project)
        append_part(project, upload.uuid, part_of(content(800)))
        BlobUpload.objects.update(is_completing=True)
        return upload

    def test_a_client_can_cancel_it_after_a_while(self, project, upload):
        rest(upload, 800)
        assert refusal(lambda: cancel_upload(project, upload.uuid)) == (404, "BLOB_UPLOAD_UNKNOWN")
        rest(upload, 1000)
        cancel_upload(project, upload.uuid)
        assert (BlobUpload.objects.count(), stored_files()) == (0, [])

    def test_the_next_upload_frees_its_bytes(self, project, upload, settings):
        settings.IMAGE_QUOTA_BYTES = 1000
        rest(upload, 800)
        assert refusal(lambda: stored(project, content(300))) == (403, "DENIED")
        discard_parts()
        rest(upload, 1000)
        stored(project, content(300))
        assert (BlobUpload.objects.count(), stored_files("uploads"), ImageBlob.objects.count()) == (0, [], 1)

    def test_no_part_is_appended_to_it(self, project, upload):
        rest(upload, 1000)
        assert refusal(lambda: append_part(project, upload.uuid, UploadPart())) == (404, "BLOB_UPLOAD_UNKNOWN")
