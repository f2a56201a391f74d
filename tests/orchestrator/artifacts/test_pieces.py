"""Pieces of artifacts in both storages: a folder, and a bucket, whose finished uploads the server looks for itself."""

import hashlib

import pytest

from orchestrator import services
from orchestrator.artifacts.pieces import close_artifact, store_piece
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.artifacts.uploads import with_confirmed
from orchestrator.audit.runner import audit_objects, run_audit
from runtime_jobs.errors import ArtifactDigestMismatch, ChunkConflict
from tests.factories import ProjectFactory, WorkerFactory, claimed, submitted_steps

pytestmark = pytest.mark.django_db
PIECES = (b"one ", b"two ", b"three")
WHOLE = b"".join(PIECES)


@pytest.fixture
def named():
    """The lease, the worker and the artifact, which is announced."""
    submitted_steps(ProjectFactory())
    worker = WorkerFactory()
    lease = {"lease_ulid": claimed(worker, job_types=("steps",)).lease.lease_ulid, "worker": worker}
    row = services.begin_lease_artifact(**lease, name="a.txt", size_bytes=len(WHOLE))
    return lease | {"artifact_ulid": row.artifact_ulid}


def put_all(named):
    offset = 0
    for piece in PIECES:
        row = store_piece(**named, offset=offset, piece=piece)
        offset += len(piece)
    return row


def keys(row):
    return sorted(key for key, _ in artifact_storage().objects(f"{row.object_key}.pieces/"))


def test_they_become_one_object(storage, named):
    row = put_all(named)
    assert [key.rpartition("/")[2] for key in keys(row)] == ["0000000000000", "0000000000004", "0000000000008"]
    store_piece(**named, offset=4, piece=PIECES[1])
    with pytest.raises(ChunkConflict):
        store_piece(**named, offset=4, piece=b"too ")
    digest = hashlib.sha256(WHOLE).hexdigest()
    assert close_artifact(**named, sha256=digest).sha256 == digest
    assert storage.read(row.object_key, 0, 100) == WHOLE
    assert keys(row) == []
    assert (run_audit(), audit_objects()) == ([], [])


def test_another_digest_leaves_no_object(storage, named):
    row = put_all(named)
    with pytest.raises(ArtifactDigestMismatch):
        close_artifact(**named, sha256="0" * 64)
    assert (keys(row), storage.size_of(row.object_key)) == ([], None)


def test_a_bucket_does_not_complete_what_was_not_closed(bucket, named):
    """The object has the announced size before its digest is compared."""
    row = put_all(named)
    bucket.put(row.object_key, [WHOLE])
    assert with_confirmed([row]) == []
    row.refresh_from_db()
    assert row.completed_at is None
