"""Pieces of artifacts in both storages: a folder, and a bucket, whose finished uploads the server looks for itself."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import transaction

from leases.models import Lease
from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.operations import abandon_objects
from orchestrator.artifacts.pieces import close_artifact, store_piece
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.artifacts.uploads import with_confirmed
from orchestrator.audit.runner import audit_objects, run_audit
from orchestrator.core.db_scope import release_connection_after
from runtime_jobs.errors import ArtifactDigestMismatch, ChunkConflict, NotFound, ResourceConflict
from runtime_jobs.models import StoredArtifact
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
    row = piece_operations.begin_lease_artifact(**lease, name="a.txt", size_bytes=len(WHOLE))
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


@pytest.fixture
def before_put(storage, monkeypatch):
    """Calls a function once, before the next object is stored."""

    def call(function):
        put, pending = type(storage).put, [function]

        def stored(self, key, blocks, **options):
            if pending:
                pending.pop()()
            return put(self, key, blocks, **options)

        monkeypatch.setattr(type(storage), "put", stored)

    return call


@pytest.mark.django_db(transaction=True)
def test_a_piece_is_stored_while_the_lease_is_free(named, before_put):
    """Under its lock the heartbeats would wait for the bucket."""

    @release_connection_after
    def lock():
        with transaction.atomic():
            return Lease.objects.select_for_update(nowait=True).get().lease_ulid

    def from_elsewhere():
        with ThreadPoolExecutor(1) as thread:
            locked.append(thread.submit(lock).result(60))

    locked = []
    before_put(from_elsewhere)
    store_piece(**named, offset=0, piece=PIECES[0])
    assert locked == [named["lease_ulid"]]


def test_the_same_piece_of_two_requests_counts_once(named, before_put):
    before_put(lambda: store_piece(**named, offset=0, piece=PIECES[0]))
    assert store_piece(**named, offset=0, piece=PIECES[0]).received_bytes == len(PIECES[0])


def test_a_piece_that_comes_after_the_close_is_deleted(named, before_put):
    def close():
        put_all(named)
        close_artifact(**named, sha256=hashlib.sha256(WHOLE).hexdigest())

    before_put(close)
    with pytest.raises(ResourceConflict):
        store_piece(**named, offset=0, piece=PIECES[0])
    assert keys(StoredArtifact.objects.get()) == []


def test_a_piece_of_an_artifact_that_was_given_up_is_deleted(named, before_put):
    row = StoredArtifact.objects.get()
    before_put(lambda: abandon_objects(StoredArtifact, [row.pk], only_incomplete=True))
    with pytest.raises(NotFound):
        store_piece(**named, offset=0, piece=PIECES[0])
    assert keys(row) == []
