"""Uploads as operations: what is visible when, what remains after a failure, and two writers of one upload."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, connections

from orchestrator.images import quotas, storage, uploads
from orchestrator.images.blobs import delete_blob, find_blob, mount_blob
from orchestrator.images.collection import collect_images
from orchestrator.images.digests import Digest
from orchestrator.images.errors import RegistryError
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import push_manifest
from orchestrator.images.models import BlobUpload, ImageBlob, ImageManifest, RepositoryBlob
from orchestrator.images.quotas import used_bytes
from orchestrator.images.storage import UploadPart
from orchestrator.images.uploads import append_part, begin_upload, cancel_upload, complete_upload, store_blob
from tests.orchestrator.images.world import (
    content,
    discard_parts,
    manifest,
    missing_files,
    part_of,
    refusal,
    stored,
    stored_files,
    unnamed_files,
)
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store")]
ALL = timedelta(0)


def read(project, digest):
    with storage.image_storage().open(find_blob(project, digest).file) as file:
        return file.read()


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
@pytest.mark.parametrize("sizes", [(), (1,), (5, 0, 7), (1 << 20, 3)])
def test_parts_become_one_blob(project, algorithm, sizes):
    parts = [content(size) for size in sizes]
    whole = b"".join(parts)
    upload = begin_upload(project)
    for data in parts:
        append_part(project, upload.uuid, part_of(data))
    digest = Digest.of(whole, algorithm)
    complete_upload(project, upload.uuid, UploadPart(), digest)
    assert read(project, digest) == whole
    assert find_blob(project, digest).size == len(whole)
    assert (BlobUpload.objects.count(), unnamed_files(), missing_files()) == (0, set(), set())


def test_nothing_is_visible_before_the_digest_is_verified(project):
    data = content()
    upload = begin_upload(project)
    append_part(project, upload.uuid, part_of(data))
    assert refusal(lambda: find_blob(project, Digest.of(data))) == (404, "BLOB_UNKNOWN")
    assert ImageBlob.objects.count() == 0


@pytest.mark.parametrize("parts", [1, 3])
def test_a_wrong_digest_ends_the_upload_and_leaves_nothing(project, parts):
    upload = begin_upload(project)
    for _ in range(parts):
        append_part(project, upload.uuid, part_of(content()))
    wrong = Digest.of(b"something else")
    assert refusal(lambda: complete_upload(project, upload.uuid, UploadPart(), wrong)) == (400, "DIGEST_INVALID")
    assert (stored_files(), BlobUpload.objects.count(), ImageBlob.objects.count()) == ([], 0, 0)


def test_a_part_that_was_changed_on_the_disk_is_found(project, store):
    data = content()
    upload = begin_upload(project)
    append_part(project, upload.uuid, part_of(data))
    (name,) = stored_files()
    (store / name).write_bytes(data[:-1] + b"?")
    assert refusal(lambda: complete_upload(project, upload.uuid, UploadPart(), Digest.of(data)))[0] == 400


def test_a_part_that_was_lost_ends_the_upload(project, store):
    data = content()
    upload = begin_upload(project)
    append_part(project, upload.uuid, part_of(data))
    (store / stored_files()[0]).unlink()
    found = refusal(lambda: complete_upload(project, upload.uuid, UploadPart(), Digest.of(data)))
    assert (found, BlobUpload.objects.count()) == ((400, "BLOB_UPLOAD_INVALID"), 0)


@pytest.mark.parametrize("start", [0, 9, 11])
def test_a_part_elsewhere_is_416_and_changes_nothing(project, start):
    upload = begin_upload(project)
    append_part(project, upload.uuid, part_of(content(10)))
    part = part_of(content(10))
    with pytest.raises(RegistryError) as found:
        append_part(project, upload.uuid, part, start=start)
    assert (found.value.status, found.value.headers["Range"]) == (416, "0-9")
    part.discard()
    assert (len(stored_files()), BlobUpload.objects.get().size) == (1, 10)
    append_part(project, upload.uuid, part_of(content(10)), start=10)


def test_a_canceled_upload_leaves_nothing(project):
    upload = begin_upload(project)
    append_part(project, upload.uuid, part_of(content()))
    cancel_upload(project, upload.uuid)
    assert (stored_files(), BlobUpload.objects.count()) == ([], 0)
    assert refusal(lambda: cancel_upload(project, upload.uuid)) == (404, "BLOB_UPLOAD_UNKNOWN")


def test_an_upload_of_another_repository_does_not_exist(project):
    other = new_project("foreign")
    upload = begin_upload(project)
    part = part_of(content())
    assert refusal(lambda: append_part(other, upload.uuid, part)) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert refusal(lambda: complete_upload(other, upload.uuid, part, Digest.of(b""))) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert refusal(lambda: cancel_upload(other, upload.uuid)) == (404, "BLOB_UPLOAD_UNKNOWN")


def test_the_parts_of_an_upload_are_limited(project, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_PARTS", 2)
    upload = begin_upload(project)
    for _ in range(2):
        append_part(project, upload.uuid, part_of(content(1)))
    part = part_of(content(1))
    assert refusal(lambda: append_part(project, upload.uuid, part)) == (400, "BLOB_UPLOAD_INVALID")


def test_the_open_uploads_of_an_organization_are_limited(project, settings):
    settings.IMAGE_MAX_UPLOADS = 2
    other = new_project("foreign")
    for _ in range(2):
        begin_upload(project)
    assert refusal(lambda: begin_upload(project)) == (429, "TOOMANYREQUESTS")
    begin_upload(other)


class TestQuota:
    @pytest.fixture(autouse=True)
    def limit(self, settings, monkeypatch):
        settings.IMAGE_QUOTA_BYTES = 1000
        monkeypatch.setattr(quotas, "monotonic", lambda: 0.0)  # no sum is slow

    def test_bytes_above_it_are_denied_and_leave_nothing(self, project):
        stored(project, content(900))
        upload = begin_upload(project)
        part = part_of(content(101))
        assert refusal(lambda: append_part(project, upload.uuid, part)) == (403, "DENIED")
        part.discard()
        assert unnamed_files() == set()
        append_part(project, upload.uuid, part_of(content(100)))
        assert refusal(lambda: begin_upload(project)) == (403, "DENIED")

    def test_a_content_counts_once_for_an_organization(self, project):
        sibling = type(project).objects.create(organization=project.organization, slug="sibling")
        data = content(600)
        digest = stored(project, data)
        assert mount_blob(sibling, digest, [project])
        assert used_bytes(project.organization_id) == 600

    def test_a_content_of_another_organization_counts_in_full(self, project):
        """Otherwise the quota would reveal what others have."""
        other = new_project("foreign")
        data = content(600)
        stored(other, data)
        stored(project, data)
        assert used_bytes(project.organization_id) == used_bytes(other.organization_id) == 600
        assert ImageBlob.objects.count() == 1

    def test_a_mount_and_a_manifest_count(self, project):
        other = new_project("foreign")
        digest = stored(other, content(600))
        stored(project, content(500))
        assert refusal(lambda: mount_blob(project, digest, [other])) == (403, "DENIED")
        config = b"{}"
        stored(project, config)
        padding = {"annotations": {"x": "y" * 400}}
        push = lambda: push_manifest(project, manifest(config, **padding), OCI_MANIFEST, digest=None, tags=["v1"])  # noqa: E731
        assert refusal(push) == (403, "DENIED")
        assert (ImageManifest.objects.count(), unnamed_files(), missing_files()) == (0, set(), set())

    def test_zero_is_unlimited(self, project, settings):
        settings.IMAGE_QUOTA_BYTES = 0
        stored(project, content(5000))


class TestProcessThatDies:
    """An exception that no code catches takes the place of kill -9: the rows and files are those of that step."""

    class Killed(BaseException):
        pass

    @pytest.mark.parametrize("step", ["publish_parts", "insert_blob", "link_blob"])
    def test_nothing_is_visible_and_nothing_remains_after_collection(self, project, monkeypatch, step):
        data = content()
        upload = begin_upload(project)
        append_part(project, upload.uuid, part_of(data))

        def die(*_):
            raise self.Killed

        monkeypatch.setattr(uploads, step, die)
        monkeypatch.setattr(uploads, "_end", lambda _: None)  # a killed process ends nothing
        with pytest.raises(self.Killed):
            complete_upload(project, upload.uuid, UploadPart(), Digest.of(data))
        monkeypatch.undo()
        assert refusal(lambda: find_blob(project, Digest.of(data))) == (404, "BLOB_UNKNOWN")
        assert refusal(lambda: append_part(project, upload.uuid, part_of(b"x")))[0] == 404, "it is being completed"
        collect_images(ALL)
        assert (stored_files("blobs"), BlobUpload.objects.count(), ImageBlob.objects.count()) == ([], 0, 0)

    def test_a_file_whose_row_may_be_committed_stays(self, project, monkeypatch):
        """The answer to COMMIT was lost: a deleted file would be a lost blob."""
        data = content()
        upload = begin_upload(project)
        append_part(project, upload.uuid, part_of(data))
        real = uploads.link_blob

        def lose_the_answer(*arguments):
            real(*arguments)
            raise ConnectionError

        monkeypatch.setattr(uploads, "link_blob", lose_the_answer)
        with pytest.raises(ConnectionError):
            complete_upload(project, upload.uuid, UploadPart(), Digest.of(data))
        assert len(stored_files("blobs")) == 1


def together(*actions):
    """Run the actions in threads that begin at the same time. Returns their outcomes."""
    barrier = threading.Barrier(len(actions))

    def act(action):
        try:
            barrier.wait(timeout=60)
            return action()
        except RegistryError as error:
            return error.status, error.code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(actions)) as threads:
        return [future.result(timeout=120) for future in [threads.submit(act, action) for action in actions]]


@pytest.mark.django_db(transaction=True)
class TestRaces:
    ROUNDS = 10

    def test_two_writers_of_one_upload_never_mix_their_bytes(self, project):
        for _ in range(self.ROUNDS):
            upload = begin_upload(project)
            first, second = content(50), content(60)
            parts = [part_of(first), part_of(second)]
            outcomes = together(*(partial(append_part, project, upload.uuid, part, start=0) for part in parts))
            assert [outcome for outcome in outcomes if outcome == (416, "BLOB_UPLOAD_INVALID")] != []
            row = BlobUpload.objects.get(uuid=upload.uuid)
            kept = first if row.size == 50 else second
            complete_upload(project, upload.uuid, UploadPart(), Digest.of(kept))
            assert read(project, Digest.of(kept)) == kept

    def test_two_pushes_of_the_same_content_store_it_once(self, project):
        other = new_project("foreign")
        for _ in range(self.ROUNDS):
            data = content()
            digest = Digest.of(data)
            together(*(partial(store_blob, owner, part_of(data), digest) for owner in (project, other)))
            assert read(project, digest) == read(other, digest) == data
        assert ImageBlob.objects.count() == self.ROUNDS
        assert (unnamed_files(), missing_files()) == (set(), set())

    def test_two_completions_of_one_upload_have_one_winner(self, project):
        for _ in range(self.ROUNDS):
            data = content()
            upload = begin_upload(project)
            append_part(project, upload.uuid, part_of(data))
            complete = partial(complete_upload, project, upload.uuid, UploadPart(), Digest.of(data))
            outcomes = together(complete, complete)
            assert sorted(outcomes, key=str) == sorted([None, (404, "BLOB_UPLOAD_UNKNOWN")], key=str)
            assert read(project, Digest.of(data)) == data

    def test_a_blob_is_deleted_or_named_by_a_manifest(self, project):
        for _ in range(self.ROUNDS):
            config = content()
            digest = stored(project, config)
            body = manifest(config)
            outcomes = together(
                partial(push_manifest, project, body, OCI_MANIFEST, digest=None, tags=[]),
                partial(delete_blob, project, digest),
            )
            has_manifest = ImageManifest.objects.filter(project=project, digest=str(Digest.of(body))).exists()
            has_blob = RepositoryBlob.objects.filter(project=project, blob__digest=str(digest)).exists()
            assert has_manifest == has_blob, outcomes
            assert (outcomes[1] is None) == (not has_blob), outcomes

    def test_a_collection_of_any_age_never_takes_a_file_that_a_row_names(self, project):
        for _ in range(self.ROUNDS):
            data = content()
            together(partial(store_blob, project, part_of(data), Digest.of(data)), partial(collect_images, ALL))
            assert missing_files() == set()
        discard_parts()
        collect_images(ALL)
        assert (unnamed_files(), missing_files()) == (set(), set())

    def test_a_content_that_is_collected_and_pushed_again_is_whole(self, project):
        other = new_project("foreign")
        for _ in range(self.ROUNDS):
            data = content()
            digest = stored(project, data)
            delete_blob(project, digest)
            outcomes = together(partial(store_blob, other, part_of(data), digest), partial(collect_images, ALL))
            assert missing_files() == set(), outcomes
            if RepositoryBlob.objects.filter(project=other, blob__digest=str(digest)).exists():
                assert read(other, digest) == data

    def test_a_manifest_of_recent_blobs_survives_a_collection(self, project):
        for _ in range(self.ROUNDS):
            config = content()
            stored(project, config)
            push = partial(push_manifest, project, manifest(config), OCI_MANIFEST, digest=None, tags=["v1"])
            outcomes = together(push, collect_images)
            assert not isinstance(outcomes[0], tuple), outcomes
        assert missing_files() == set()

    def test_the_quota_holds_for_uploads_at_the_same_time(self, project, settings):
        settings.IMAGE_QUOTA_BYTES = 1000
        rows = [begin_upload(project) for _ in range(4)]
        actions = [lambda row=row: append_part(project, row.uuid, part_of(content(400))) for row in rows]
        outcomes = together(*actions)
        assert outcomes.count((403, "DENIED")) == 2
        assert used_bytes(project.organization_id) == 800

    def test_no_lock_remains(self, project):
        stored(project, content())
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 13")
            assert cursor.fetchone() == (0,)
