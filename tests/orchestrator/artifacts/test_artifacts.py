"""Artifacts and caches: announced, uploaded once, counted, and deleted when they are due."""

import hashlib
import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from leases.errors import StaleLease
from orchestrator.artifacts import piece_operations, tasks
from orchestrator.artifacts.addresses import InvalidAddress, download_url, read_address, upload_url
from orchestrator.artifacts.operations import (
    UPLOAD_TIME,
    abandon_objects,
    begin_artifact,
    begin_cache_entry,
    cache_scope,
    delete_abandoned,
    find_cache_entry,
    validate_path,
    validate_workflow_name,
)
from orchestrator.artifacts.storage import ObjectPart, artifact_storage
from orchestrator.artifacts.tasks import ABANDONED_AFTER, delete_due_objects
from orchestrator.artifacts.uploads import confirm_uploads, store_upload, with_confirmed
from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.secrets.operations import snapshot_secrets
from runtime_jobs.errors import NotFound, ResourceConflict, StorageQuotaExceeded, UploadMismatch
from runtime_jobs.models import CacheEntry, MaskSnapshot, Plan, Project, StorageUsage, StoredArtifact
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, claimed, source, submitted_steps
from tests.workflow_jobs import claimed_workflow_job

pytestmark = pytest.mark.django_db
VERSION = "a" * 64


def holder(project=None, **changes):
    """A claimed job of type `steps`, and its holder; of one and the same project unless another one is named."""
    submitted_steps(project or Project.objects.order_by("pk").first() or ProjectFactory(), **changes)
    worker = WorkerFactory()
    return claimed(worker, job_types=("steps",)), worker


def begin(claim, worker, name="dist/a.txt", size=3, **options):
    return piece_operations.begin_lease_artifact(
        lease_ulid=claim.lease.lease_ulid, worker=worker, name=name, size_bytes=size, **options
    )


def begin_cache(claim, worker, key="deps", size=3, version=VERSION, **options):
    return begin_cache_entry(
        lease_ulid=claim.lease.lease_ulid, worker=worker, key=key, version=version, size_bytes=size, **options
    )


def restore(claim, worker, key="deps", version=VERSION, **options):
    return find_cache_entry(lease_ulid=claim.lease.lease_ulid, worker=worker, key=key, version=version, **options)


def send(row, content=b"abc"):
    """Upload to the address of a row, without HTTP."""
    token = upload_url(row).rpartition("/")[2]
    part = ObjectPart()
    try:
        part.write(content)
        return store_upload(read_address(token, method="PUT", now=timezone.now()), part)
    finally:
        part.discard()


def after_uploads(row):
    """The time from which an upload that was announced with this row is late."""
    return row.upload_until + ABANDONED_AFTER + timedelta(seconds=1)


def used():
    return StorageUsage.objects.values_list("byte_count", flat=True).first() or 0


@pytest.fixture
def plan(db):
    ProjectFactory()
    return Plan.objects.get()


class TestUpload:
    def test_an_artifact_is_complete_with_its_whole_content(self, folder):
        row = begin(*holder())
        assert (row.completed_at, with_confirmed([row])) == (None, [])
        done = send(row)
        assert done.sha256 == hashlib.sha256(b"abc").hexdigest()
        assert done.completed_at is not None
        assert artifact_storage().read(row.object_key, 0, 10) == b"abc"
        assert row.name not in row.object_key

    @pytest.mark.parametrize("content", [b"", b"ab", b"abcd"])
    def test_another_length_is_refused_and_leaves_nothing(self, folder, content):
        row = begin(*holder())
        with pytest.raises(UploadMismatch):
            send(row, content)
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        row.refresh_from_db()
        assert row.completed_at is None
        assert send(row).completed_at is not None  # the address is still valid

    def test_the_same_content_again_is_accepted_and_another_one_not(self, folder):
        row = begin(*holder())
        send(row)
        send(row)
        with pytest.raises(ResourceConflict):
            send(row, b"xyz")
        assert artifact_storage().read(row.object_key, 0, 10) == b"abc"

    def test_an_empty_artifact_is_complete_too(self, folder):
        row = begin(*holder(), size=0)
        assert send(row, b"").completed_at is not None
        assert artifact_storage().size_of(row.object_key) == 0

    def test_a_name_is_used_once_in_a_job(self, folder):
        claim, worker = holder()
        begin(claim, worker)
        with pytest.raises(ResourceConflict, match="name"):
            begin(claim, worker)
        begin(claim, worker, name="other")
        begin(*holder())  # another job

    def test_an_upload_that_never_came_leaves_its_name(self, folder):
        claim, worker = holder()
        first = begin(claim, worker)
        StoredArtifact.objects.filter(pk=first.pk).update(upload_until=timezone.now() - timedelta(seconds=1))
        second = begin(claim, worker)
        assert second.object_key != first.object_key
        with pytest.raises(NotFound):
            send(first)
        assert send(second).completed_at is not None

    def test_a_lost_lease_announces_nothing(self, folder):
        claim, worker = holder()
        later = claim.lease.expires_at
        for call in (begin, begin_cache, restore):
            with pytest.raises(StaleLease):
                call(claim, worker, now=later)
            with pytest.raises(StaleLease):
                call(claim, WorkerFactory())
        assert not StoredArtifact.objects.exists()

    def test_jobs_of_a_run_share_the_names(self, folder):
        found = claimed_workflow_job()
        options = {"name": "report", "size_bytes": 3, "now": timezone.now(), "run_id": found.run.pk}
        row = begin_artifact(UnitOfWork(), job=found.job, **options)
        assert (row.batch_id, row.object_key.rpartition("/")[0]) == (
            found.job.batch_id, f"actions/runs/{found.run.pk}/artifacts",
        )  # fmt: skip
        with pytest.raises(ResourceConflict, match="workflow run"):
            begin_artifact(UnitOfWork(), job=found.job, **options)


class TestQuota:
    def test_bytes_count_from_the_announcement_until_the_object_is_deleted(self, folder, plan):
        Plan.objects.update(max_stored_bytes=10)
        claim, worker = holder()
        first = begin(claim, worker, size=6)
        begin_cache(claim, worker, size=4)
        assert used() == 10
        with pytest.raises(StorageQuotaExceeded) as caught:
            begin(claim, worker, name="b", size=1)
        assert caught.value.facts == {"limit": 10}
        begin(claim, worker, name="empty", size=0)
        assert StoredArtifact.objects.count() == 2
        abandon_objects(StoredArtifact, [first.pk], only_incomplete=True)
        assert used() == 10
        delete_due_objects()
        assert used() == 4
        begin(claim, worker, name="b", size=6)

    def test_without_a_limit_everything_is_accepted(self, folder, plan):
        Plan.objects.update(max_stored_bytes=None)
        begin(*holder(), size=5 << 30)
        assert used() == 5 << 30


class TestCaches:
    def test_the_next_job_of_the_project_restores_what_was_saved(self, folder):
        claim, worker = holder()
        assert restore(claim, worker) is None
        entry = begin_cache(claim, worker)
        assert restore(claim, worker) is None  # not complete
        send(entry)
        assert restore(*holder()).pk == entry.pk
        assert restore(*holder(), version="b" * 64) is None
        assert begin_cache(*holder()) is None  # never replaced

    def test_another_project_never_does(self, folder):
        send(begin_cache(*holder()))
        other = ProjectFactory(organization=Project.objects.get().organization, slug="other")
        assert restore(*holder(other)) is None
        assert begin_cache(*holder(other)) is not None

    def test_a_similar_key_is_restored_the_newest_first(self, folder):
        claim, worker = holder()
        for key in ("deps-1", "deps-2", "tools-1"):
            send(begin_cache(claim, worker, key=key))
        found = restore(claim, worker, key="deps-3", restore_keys=["deps-", "tools-"])
        assert found.key == "deps-2"
        assert restore(claim, worker, key="deps-1", restore_keys=["deps-"]).key == "deps-1"
        assert restore(claim, worker, key="x", restore_keys=["tools-"]).key == "tools-1"
        assert restore(claim, worker, key="deps_", restore_keys=["deps_", "%"]) is None  # no patterns

    def test_the_entry_of_a_pull_request_is_only_for_its_ref(self, folder):
        """Its code is a stranger's: an entry that it saved must not reach a job of the branch."""
        project = ProjectFactory()
        trusted, worker = holder(project)
        send(begin_cache(trusted, worker, key="base"))
        for key, value in (("pull_request_number", 7), ("git_ref", "refs/pull/7/head")):
            setattr(trusted.job, key, value)
        trusted.job.save(update_fields=["pull_request_number", "git_ref"])
        assert cache_scope(trusted.job) == "refs/pull/7/head#7"
        assert restore(trusted, worker, key="base").key == "base"
        send(begin_cache(trusted, worker, key="poisoned"))
        assert restore(trusted, worker, key="poisoned") is not None
        branch, other_worker = holder(project)
        assert restore(branch, other_worker, key="poisoned", restore_keys=["poisoned"]) is None
        branch.job.pull_request_number = 8
        branch.job.save(update_fields=["pull_request_number"])
        assert restore(branch, other_worker, key="poisoned") is None

    def test_a_job_is_of_a_pull_request_by_its_ref_too(self, folder):
        """A client submits it as `manual`: the CI of a repository that starts runs for pull requests itself."""
        project = ProjectFactory()
        for ref in ("refs/pull/7/head", "pull/7/merge", "refs/merge-requests/3/head", "refs/changes/01/1/2"):
            stranger, worker = holder(project, source=source(ref=ref, pull_request_number=None))
            send(begin_cache(stranger, worker, key=f"of {ref}"))
            assert restore(stranger, worker, key=f"of {ref}") is not None
        for ref in ("refs/heads/main", "main", "refs/tags/v1", "refs/heads/pull/7", "pull-to-refresh", None):
            own, worker = holder(project, source=source(ref=ref, pull_request_number=None))
            assert cache_scope(own.job) == ""
            assert restore(own, worker, key="of", restore_keys=["of "]) is None, ref


class TestDeletion:
    def test_what_is_due_is_deleted_with_its_object(self, folder, settings):
        settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"artifacts": 90, "caches": 7}
        claim, worker = holder()
        kept, expired, never = (begin(claim, worker, name=name) for name in ("kept", "expired", "never"))
        cache = begin_cache(claim, worker)
        for row in (kept, expired, cache):
            send(row)
        now = timezone.now()
        StoredArtifact.objects.filter(pk=expired.pk).update(expires_at=now - timedelta(seconds=1))
        CacheEntry.objects.update(last_used_at=now - timedelta(days=7, seconds=1))
        assert delete_due_objects(now) == 2
        assert set(StoredArtifact.objects.all()) == {kept, never}
        assert not CacheEntry.objects.exists()
        assert [path.name for path in folder.rglob("*") if path.is_file()] == [kept.object_key.rpartition("/")[2]]
        assert used() == 6
        assert delete_due_objects(now + UPLOAD_TIME + ABANDONED_AFTER + timedelta(minutes=1)) == 1
        assert list(StoredArtifact.objects.all()) == [kept]

    def test_a_process_that_dies_between_object_and_row_leaves_no_bytes_without_a_row(self, folder, monkeypatch):
        row = begin(*holder())
        send(row)
        StoredArtifact.objects.update(expires_at=timezone.now() - timedelta(days=1))
        original = delete_abandoned

        def die(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("orchestrator.artifacts.tasks.delete_abandoned", die)
        with pytest.raises(KeyboardInterrupt):
            delete_due_objects()
        assert StoredArtifact.objects.get().is_abandoned
        monkeypatch.setattr("orchestrator.artifacts.tasks.delete_abandoned", original)
        assert delete_due_objects() == 1
        assert used() == 0

    def test_a_storage_that_fails_keeps_the_row(self, folder, monkeypatch):
        send(begin(*holder()))
        StoredArtifact.objects.update(expires_at=timezone.now() - timedelta(days=1))

        def fail(*_):
            raise OSError("away")

        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.artifacts.storage.ArtifactFileStorage.remove", fail)
            with pytest.raises(OSError, match="away"):
                delete_due_objects()
        assert StoredArtifact.objects.count() == 1
        assert delete_due_objects() == 1


class TestAddresses:
    def test_an_address_is_for_one_method_one_object_and_15_minutes(self, folder):
        row = begin(*holder())
        token = upload_url(row).rpartition("/")[2]
        found = read_address(token, method="PUT", now=row.upload_until - timedelta(seconds=2))
        assert (found.row_id, found.object_key, found.byte_count) == (row.pk, row.object_key, 3)
        for method in ("GET", "HEAD", "POST", "DELETE"):
            with pytest.raises(InvalidAddress):
                read_address(token, method=method, now=row.created_at)
        with pytest.raises(InvalidAddress):
            read_address(token, method="PUT", now=row.upload_until)
        download = download_url(row, file_name="a", now=row.created_at).rpartition("/")[2]
        assert read_address(download, method="HEAD", now=row.created_at).row_id == row.pk
        with pytest.raises(InvalidAddress):
            read_address(download, method="PUT", now=row.created_at)

    def test_each_altered_character_is_refused(self, folder):
        row = begin(*holder())
        token = upload_url(row).rpartition("/")[2]
        head, _, signature = token.rpartition(".")
        wrong = [f"{head}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}", head, f"{head}.", "", "x" * 3000]
        wrong += [
            token[:place] + ("a" if token[place] != "a" else "b") + token[place + 1 :] for place in range(0, 60, 7)
        ]
        for text in wrong:
            with pytest.raises(InvalidAddress):
                read_address(text, method="PUT", now=row.created_at)


class TestBucket:
    def test_an_upload_counts_once_the_bucket_has_it(self, bucket):
        row = begin(*holder())
        assert confirm_uploads([row]) == []
        bucket.put(row.object_key, [b"abc"])
        (confirmed,) = with_confirmed([row])
        assert (confirmed.completed_at is not None, confirmed.sha256) == (True, None)

    def test_another_length_is_never_visible(self, bucket):
        row = begin(*holder())
        bucket.put(row.object_key, [b"abcd"])
        assert with_confirmed([row]) == []
        row.refresh_from_db()
        assert row.completed_at is None

    def test_a_bucket_that_is_away_hides_only_what_is_not_known(self, bucket, monkeypatch):
        claim, worker = holder()
        known, unknown = begin(claim, worker), begin(claim, worker, name="b")
        bucket.put(known.object_key, [b"abc"])
        (known,) = confirm_uploads([known])

        def fail(*_):
            raise OSError("away")

        monkeypatch.setattr(type(bucket), "size_of", fail)
        assert with_confirmed([known, unknown]) == [known]

    def test_due_objects_are_deleted_in_the_bucket(self, bucket):
        row = begin(*holder())
        bucket.put(row.object_key, [b"abcd"])  # not the announced size
        assert delete_due_objects(after_uploads(row)) == 1
        assert bucket.size_of(row.object_key) is None

    def test_an_upload_that_arrived_unconfirmed_is_kept_and_becomes_complete(self, bucket, monkeypatch):
        monkeypatch.setattr(tasks, "ROWS_PER_ROUND", 1)
        claim, worker = holder()
        never, arrived = (begin(claim, worker, name=name) for name in ("never", "arrived"))
        cache = begin_cache(claim, worker)
        for row in (arrived, cache):
            bucket.put(row.object_key, [b"abc"])
        assert delete_due_objects(after_uploads(cache)) == 1
        assert not StoredArtifact.objects.filter(pk=never.pk).exists()
        for row in (arrived, cache):
            row.refresh_from_db()
            assert (row.completed_at is not None, row.is_abandoned) == (True, False)
            assert bucket.size_of(row.object_key) == 3

    def test_a_bucket_that_is_away_keeps_late_uploads(self, bucket, monkeypatch):
        row = begin(*holder())
        bucket.put(row.object_key, [b"abc"])

        def fail(*_):
            raise OSError("away")

        with monkeypatch.context() as patched:
            patched.setattr(type(bucket), "size_of", fail)
            with pytest.raises(OSError, match="away"):
                delete_due_objects(after_uploads(row))
        row.refresh_from_db()
        assert not row.is_abandoned
        assert bucket.size_of(row.object_key) == 3

    def test_uploads_that_never_come_hide_no_later_one(self, bucket, monkeypatch):
        monkeypatch.setattr(tasks, "ROWS_PER_ROUND", 2)
        claim, worker = holder()
        rows = [begin(claim, worker, name=str(number)) for number in range(6)]
        StoredArtifact.objects.filter(pk=rows[3].pk).update(received_bytes=2)  # sent in pieces
        caches = [begin_cache(claim, worker, key=str(number)) for number in range(3)]
        for row in (rows[-1], caches[-1]):
            bucket.put(row.object_key, [b"abc"])
        tasks.confirm_waiting_uploads("")
        for row in (rows[-1], caches[-1]):
            row.refresh_from_db()
            assert row.completed_at is not None


@pytest.mark.parametrize("name", ["a", "a.b", "-x", "x.", "A_b-1.tar.gz", "a" * 100])
def test_names_of_the_contract(name):
    assert validate_workflow_name(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "..a", "a/b", "a b", "a\\b", "ä", "a" * 101, "a\n", "a\0"])
def test_names_that_the_contract_refuses(name):
    assert validate_workflow_name(name)


@pytest.mark.parametrize("path", ["a", "dist/a.txt", "a b/c", "ä/ö", ".github/x", "a" * 1024])
def test_paths(path):
    assert validate_path(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "../x", "/etc/x", "a/../../b", "a\\b", "a//b", "a/", "-rf", "a.", "a /b", ".git/config", "x/.git/y",
        "a\0", "a\n", "a\u202eb", "ä" * 513,
    ],
)  # fmt: skip
def test_paths_that_are_refused(path):
    assert validate_path(path)


class TestAudit:
    def test_counted_bytes_that_differ_are_found(self, folder):
        begin(*holder())
        assert [finding.code for finding in run_audit()] == []
        StorageUsage.objects.update(byte_count=4)
        assert [finding.code for finding in run_audit()] == ["O1"]

    def test_a_digest_without_completion_and_an_object_of_another_tenant_are_found(self, folder):
        row = begin(*holder())
        StoredArtifact.objects.update(sha256="0" * 64)
        assert [finding.code for finding in run_audit()] == ["O2"]
        StoredArtifact.objects.update(sha256=None, organization=OrganizationFactory())
        assert "O2" in [finding.code for finding in run_audit()]
        assert row.pk

    def test_masks_of_a_later_fence_are_found(self, folder):
        found = claimed_workflow_job()
        snapshot_secrets(UnitOfWork(), found.job, found.run)
        assert [finding.code for finding in run_audit()] == []
        MaskSnapshot.objects.update(fence=found.job.fence + 1)
        assert [finding.code for finding in run_audit()] == ["O3"]

    def test_a_missing_or_cut_object_and_an_unreadable_value_are_found(self, folder):
        claim, worker = holder()
        whole, cut, gone = (begin(claim, worker, name=name) for name in ("whole", "cut", "gone"))
        for row in (whole, cut, gone):
            send(row)
        assert audit_objects() == []
        (folder / cut.object_key).write_bytes(b"ab")
        (folder / gone.object_key).unlink()
        found = claimed_workflow_job()
        snapshot_secrets(UnitOfWork(), found.job, found.run)
        MaskSnapshot.objects.update(sealed=b"x" * 60)
        objects, values = audit_objects()
        assert (objects.code, set(objects.broken_for)) == ("O4", {cut.object_key, gone.object_key})
        assert (values.code, len(values.broken_for)) == ("O5", 1)
        with pytest.raises(SystemExit):
            call_command("audit", "--objects", stdout=io.StringIO())
