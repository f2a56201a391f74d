"""Artifacts that are sent in pieces under the lease, and closed by their SHA-256."""

import base64
import errno
import hashlib
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from orchestrator.artifacts.pieces import MAX_PIECE_BYTES
from orchestrator.artifacts.tasks import ABANDONED_AFTER, delete_due_objects
from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.services import job_end
from runtime_jobs.models import Plan, StorageUsage, StoredArtifact
from tests.api_client import Caller, problem_of, refused
from tests.factories import ProjectFactory, WorkerFactory, claimed, submitted_steps
from tests.orchestrator.artifacts.conftest import FOLDER, use

pytestmark = pytest.mark.django_db
FIRST, SECOND = b"a" * MAX_PIECE_BYTES, b"the rest"
WHOLE = FIRST + SECOND
DIGEST = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


@pytest.fixture
def claim(organization, worker):
    submitted_steps(ProjectFactory(organization=organization))
    return claimed(worker, job_types=("steps",))


class Upload:
    """One announced artifact, and the calls of its worker."""

    def __init__(self, wendy, claim, name="dist/report.html"):
        self.wendy, self.folder = wendy, f"/v1/runtime/leases/{claim.lease.lease_ulid}/artifacts"
        made = wendy.post(self.folder, {"name": name, "size_bytes": len(WHOLE)})
        assert made.status_code == 201, made.content
        self.artifact_id = made.json()["artifact_id"]

    def put(self, offset, piece, content_type="application/octet-stream"):
        path = f"{self.folder}/{self.artifact_id}/pieces/{offset}"
        return self.wendy.http.generic("PUT", path, piece, content_type=content_type, headers=self.wendy.headers)

    def close(self, sha256=DIGEST):
        return self.wendy.post(f"{self.folder}/{self.artifact_id}/close", {"sha256": sha256})

    def put_all(self):
        for offset, piece in ((0, FIRST), (MAX_PIECE_BYTES, SECOND)):
            assert self.put(offset, piece).status_code == 200
        return self


@pytest.fixture
def upload(wendy, claim):
    return Upload(wendy, claim)


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def content_of(alice, artifact_id, **headers):
    address = urlsplit(alice.get(f"/v1/artifacts/{artifact_id}").json()["download_url"]).path
    found = Client().get(address, headers=headers)
    return found, b"".join(found.streaming_content) if found.streaming else found.content


def test_from_the_first_piece_to_the_download(alice, upload, folder):
    first = upload.put(0, FIRST)
    assert (first.status_code, first.json()["received_bytes"]) == (200, MAX_PIECE_BYTES)
    assert alice.get("/v1/artifacts").json()["results"] == []
    assert upload.put(MAX_PIECE_BYTES, SECOND).json()["received_bytes"] == len(WHOLE)
    closed = upload.close()
    assert (closed.status_code, closed.json()["sha256"], closed.json()["size_bytes"]) == (200, DIGEST, len(WHOLE))
    assert files(folder) == [upload.artifact_id], "the pieces are gone"
    found, content = content_of(alice, upload.artifact_id)
    assert content == WHOLE
    assert found["Repr-Digest"] == f"sha-256=:{base64.b64encode(hashlib.sha256(WHOLE).digest()).decode()}:"
    assert (found["Content-Disposition"], found["X-Content-Type-Options"]) == (
        'attachment; filename="report.html"',
        "nosniff",
    )
    part, content = content_of(alice, upload.artifact_id, Range=f"bytes={MAX_PIECE_BYTES}-")
    assert (part.status_code, content, part["Repr-Digest"]) == (206, SECOND, found["Repr-Digest"])
    assert (run_audit(), audit_objects()) == ([], [])


def test_repetitions_change_nothing(upload, folder):
    upload.put_all()
    assert upload.put(0, FIRST).json()["received_bytes"] == len(WHOLE)
    assert upload.close().json() == upload.close().json()
    refused(lambda: upload.close("0" * 64), 409, "conflict")
    refused(lambda: upload.put(0, FIRST), 409, "conflict")
    assert files(folder) == [upload.artifact_id]


def test_a_missing_piece_is_named(upload):
    found = refused(lambda: upload.put(MAX_PIECE_BYTES, SECOND), 409, "chunk_gap")
    assert found["expected_offset"] == 0
    upload.put(0, FIRST)
    found = refused(upload.close, 409, "chunk_gap")
    assert found["expected_offset"] == MAX_PIECE_BYTES


@pytest.mark.parametrize(("offset", "piece"), [(0, b"b" * MAX_PIECE_BYTES), (0, b"a"), (1, FIRST[1:])])
def test_another_piece_at_a_place_is_a_conflict(upload, offset, piece):
    upload.put(0, FIRST)
    refused(lambda: upload.put(offset, piece), 409, "chunk_conflict")
    assert StoredArtifact.objects.get().received_bytes == MAX_PIECE_BYTES


def test_another_digest_is_refused_and_the_bytes_are_dropped(alice, wendy, claim, upload, folder):
    upload.put_all()
    found = problem_of(upload.close("0" * 64))
    assert (found["status"], found["code"]) == (409, "digest_mismatch")
    assert DIGEST in found["detail"]
    assert files(folder) == []
    assert alice.get("/v1/artifacts").json()["results"] == []
    refused(upload.close, 404, "not_found")
    assert Upload(wendy, claim).put_all().close().status_code == 200, "the name is free"
    assert run_audit() == []


def test_the_digest_is_that_of_the_stored_bytes(upload, folder):
    """Not of what arrived: a disk may change a byte before the artifact is closed."""
    upload.put_all()
    (second,) = (path for path in folder.rglob("*") if path.name.endswith(str(MAX_PIECE_BYTES)))
    second.write_bytes(b"the rust")
    assert problem_of(upload.close())["code"] == "digest_mismatch"
    assert (files(folder), StoredArtifact.objects.get().completed_at) == ([], None)


@pytest.mark.parametrize(
    ("offset", "piece", "status", "code"),
    [
        (0, b"", 400, "invalid"),
        (0, FIRST + b"b", 413, "payload_too_large"),
        (0, FIRST[:-1], 200, None),
        (len(WHOLE), b"x", 422, "size_mismatch"),
    ],
)
def test_the_bounds_of_a_piece(upload, offset, piece, status, code):
    found = upload.put(offset, piece)
    assert (found.status_code, found.json().get("code")) == (status, code)


def test_a_piece_is_bytes(upload):
    found = upload.put(0, b"{}", content_type="application/json")
    assert (found.status_code, found.json()["code"]) == (415, "unsupported_media_type")


def test_only_the_holder_of_the_lease_sends_and_closes(organization, wendy, claim, upload):
    upload.put_all()
    submitted_steps(ProjectFactory(organization=organization))
    stranger = WorkerFactory()
    other = claimed(stranger, job_types=("steps",))
    foreign = f"/v1/runtime/leases/{other.lease.lease_ulid}/artifacts"
    own, upload.wendy = upload.wendy, Caller(stranger.token)
    refused(upload.close, 409, "stale_lease")
    refused(lambda: upload.put(0, FIRST), 409, "stale_lease")
    upload.folder, mine = foreign, upload.folder
    refused(upload.close, 404, "not_found")
    refused(lambda: upload.put(0, FIRST), 404, "not_found")
    upload.wendy, upload.folder = own, mine
    job_end.fail(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, reason="worker_error")
    refused(upload.close, 409, "stale_lease")
    refused(lambda: upload.put(0, FIRST), 409, "stale_lease")
    assert StoredArtifact.objects.get().completed_at is None


def test_a_full_disk_is_refused_by_name_and_leaves_nothing_alone(upload, folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail_to(call):
        with monkeypatch.context() as patched:
            patched.setattr("orchestrator.artifacts.storage.ArtifactFileStorage.publish", full)
            refused(call, 507, "storage_full")

    fail_to(lambda: upload.put(0, FIRST))
    assert (files(folder), StoredArtifact.objects.get().received_bytes) == ([], 0)
    upload.put_all()
    pieces = files(folder)
    fail_to(upload.close)
    assert (files(folder), StoredArtifact.objects.get().completed_at) == (pieces, None)
    assert upload.close().status_code == 200, "with room again the same call counts"


def test_what_is_never_closed_is_deleted_with_its_pieces(upload, folder):
    upload.put_all()
    assert len(files(folder)) == 2
    assert delete_due_objects(timezone.now() + ABANDONED_AFTER) == 0, "each piece extends the time"
    assert delete_due_objects(timezone.now() + ABANDONED_AFTER + timedelta(minutes=16)) == 1
    assert files(folder) == []
    assert StorageUsage.objects.get().byte_count == 0


class TestQuota:
    def announce(self, wendy, claim, name, size=1):
        path = f"/v1/runtime/leases/{claim.lease.lease_ulid}/artifacts"
        return wendy.post(path, {"name": name, "size_bytes": size})

    def test_the_number_of_artifacts_of_a_job_is_bounded(self, wendy, claim):
        Plan.objects.update(max_job_artifacts=2)
        for name in "ab":
            assert self.announce(wendy, claim, name).status_code == 201
        found = refused(lambda: self.announce(wendy, claim, "c"), 429, "artifact_quota")
        assert found["limit"] == 2
        Plan.objects.update(max_job_artifacts=None)
        assert self.announce(wendy, claim, "c").status_code == 201

    def test_their_bytes_are_bounded(self, wendy, claim):
        assert self.announce(wendy, claim, "a", 10 << 30 >> 1).status_code == 201
        found = refused(lambda: self.announce(wendy, claim, "b", (10 << 30 >> 1) + 1), 400, "invalid")
        assert list(found["errors"]) == ["size_bytes"]
        Plan.objects.update(max_job_artifact_bytes=(5 << 30) + 9)
        found = refused(lambda: self.announce(wendy, claim, "b", 10), 429, "artifact_quota")
        assert found["limit"] == (5 << 30) + 9
        assert self.announce(wendy, claim, "b", 9).status_code == 201

    def test_another_job_has_its_own(self, organization, wendy, worker, claim):
        Plan.objects.update(max_job_artifacts=1)
        assert self.announce(wendy, claim, "a").status_code == 201
        submitted_steps(ProjectFactory(organization=organization))
        assert self.announce(wendy, claimed(worker, job_types=("steps",)), "a").status_code == 201


@pytest.mark.parametrize("name", ["../x", "a/../b", "/etc/passwd", ".", "", "a\\b", "x" * 1025, "a\u202eb", "-x"])
def test_a_name_that_leads_elsewhere_has_a_code(wendy, claim, name):
    call = {"name": name, "size_bytes": 1}
    path = f"/v1/runtime/leases/{claim.lease.lease_ulid}/artifacts"
    found = refused(lambda: wendy.post(path, call), 400, "invalid_artifact_name")
    assert list(found["errors"]) == ["name"]
