"""Checkpoints cover each ended job once, in the order of the feeds, and never past the oldest open transaction."""

import base64
import hashlib
import json
import threading
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, connections, transaction

from orchestrator.audit.runner import run_audit
from orchestrator.evidence import checkpoints as checkpoints_module
from orchestrator.evidence.chain_models import Checkpoint, CheckpointJob, EvidencePosition
from orchestrator.evidence.checkpoint_files import checkpoint_files, file_checkpoints, file_of
from orchestrator.evidence.checkpoints import (
    are_checkpoints_due,
    has_passed,
    jobs_digest,
    request_checkpoints,
    write_checkpoints,
)
from orchestrator.evidence.dsse import verify
from orchestrator.evidence.exporting import ExportServer
from orchestrator.evidence.positions import read_everything_again
from orchestrator.evidence.signing_keys import SigningKeyError, public_keys
from orchestrator.evidence.tasks import RETRY_SECONDS, CheckpointTask
from orchestrator.services import pruning
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.evidence.world import checkpoints, ended_job, operator_event
from tests.orchestrator.protocols.stella.requests import row_of, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def audited(folders, transactional_db):
    yield
    assert [str(finding) for finding in run_audit(chains=True)] == []


def statement(checkpoint: Checkpoint) -> dict:
    return json.loads(verify(checkpoint.envelope, public_keys()))


def of(slug: str, written: list[Checkpoint]) -> Checkpoint:
    (found,) = [checkpoint for checkpoint in written if checkpoint.org_slug == slug]
    return found


def test_a_checkpoint_states_what_has_ended_since_the_one_before():
    jobs = [ended_job(), ended_job()]
    event = operator_event()
    first = of("acme", checkpoints())
    predicate = statement(first)["predicate"]
    digest = jobs_digest([(job.job_ulid, job.event_seq, job.event_head) for job in jobs])
    assert statement(first)["subject"] == [{"name": "acme/checkpoints/1", "digest": {"sha256": digest}}]
    assert predicate["jobs"] == {"count": 2, "sha256": digest}
    assert (predicate["tenant"], predicate["number"], predicate["previous"]) == ("acme", 1, None)
    assert predicate["operatorEvents"]["count"] >= 1
    assert event.org_slug == "acme"

    last = ended_job()
    second = of("acme", checkpoints())
    predicate = statement(second)["predicate"]
    assert predicate["previous"] == first.sha256 == hashlib.sha256(verify(first.envelope, public_keys())).hexdigest()
    assert (predicate["number"], predicate["jobs"]["count"]) == (2, 1)
    assert list(second.jobs.values_list("job_ulid", flat=True)) == [last.job_ulid]


def test_each_organization_has_its_own_and_one_without_news_has_none():
    ended_job("acme")
    ended_job("other")
    first = checkpoints()
    assert {"acme", "other"} <= {checkpoint.org_slug for checkpoint in first}
    assert len(of("acme", first).jobs.all()) == len(of("other", first).jobs.all()) == 1
    checkpoints()  # of the installation: the event of the first key
    assert checkpoints() == []
    operator_event("other")
    assert [(one.org_slug, one.number) for one in checkpoints()] == [("other", 2)]


def test_a_pass_ends_below_the_oldest_open_transaction():
    """That transaction may still commit the end of another job, with a lower stamp than those of now."""
    has_begun, may_commit = threading.Event(), threading.Event()

    def write():
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
                has_begun.set()
                assert may_commit.wait(20)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert has_begun.wait(20)
        job = ended_job()
        assert write_checkpoints()[1]
        assert not CheckpointJob.objects.exists()
    finally:
        may_commit.set()
        writer.join(20)
    checkpoints()
    assert CheckpointJob.objects.get().job_ulid == job.job_ulid


def test_two_processes_cover_each_job_once():
    jobs = {ended_job().job_ulid for _ in range(4)}
    wait_for_older_transactions()
    barrier = threading.Barrier(2)

    def write():
        try:
            barrier.wait(20)
            write_checkpoints()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(CheckpointJob.objects.values_list("job_ulid", flat=True)) == jobs


def test_a_long_history_is_read_in_steps():
    jobs = {ended_job().job_ulid for _ in range(3)}
    wait_for_older_transactions()
    steps = [write_checkpoints(max_events=5)[1]]
    assert not has_passed(database_now() - timedelta(hours=1))
    while not steps[-1]:
        steps.append(write_checkpoints(max_events=5)[1])
    assert len(steps) > 2
    assert set(CheckpointJob.objects.values_list("job_ulid", flat=True)) == jobs


def test_they_are_due_each_hour_and_by_request(settings):
    assert are_checkpoints_due()
    checkpoints()
    passed_at = EvidencePosition.objects.get(name="checkpoints").passed_at
    assert not are_checkpoints_due(now=passed_at + timedelta(seconds=settings.CHECKPOINT_SECONDS - 1))
    assert are_checkpoints_due(now=passed_at + timedelta(seconds=settings.CHECKPOINT_SECONDS))
    requested_at = request_checkpoints()
    assert not has_passed(requested_at)
    assert are_checkpoints_due()
    job = ended_job()
    wait_for_older_transactions()
    assert CheckpointTask().advance() >= 1
    assert has_passed(requested_at)
    assert not are_checkpoints_due()
    assert CheckpointJob.objects.filter(job_ulid=job.job_ulid).exists()


def test_an_export_requests_them(alice):
    checkpoints()
    export = submit(alice, jobType="export", payload={"format": "audit-bundle", "since": "2026-01-01T00:00:00Z"})
    assert ExportServer().serve_next()
    assert are_checkpoints_due()
    of("acme", checkpoints()).jobs.get(job_ulid=row_of(export).job_ulid)


def test_without_a_key_nothing_is_written_and_the_task_waits(monkeypatch, caplog):
    job = ended_job()
    wait_for_older_transactions()
    clock = [0.0]
    task = CheckpointTask(monotonic=lambda: clock[0])

    def refuse(*_):
        raise SigningKeyError("no key")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints_module, "sign", refuse)
        assert task.advance() == 0
    assert "no checkpoint can be written" in caplog.text
    assert not Checkpoint.objects.exists()
    assert not CheckpointJob.objects.exists()
    assert task.advance() == 0, "not in each round"
    clock[0] += RETRY_SECONDS
    assert task.advance() >= 1
    assert CheckpointJob.objects.get().job_ulid == job.job_ulid


def test_retention_leaves_what_was_signed():
    kept, old = ended_job(), ended_job()
    checkpoints()
    cutoff = database_now() + timedelta(hours=1)
    pruning.delete_finished_jobs(job_ids=[old.pk], finished_before=cutoff)
    assert set(Job.objects.values_list("pk", flat=True)) == {kept.pk}
    rows = dict(CheckpointJob.objects.values_list("job_ulid", "deleted_at"))
    assert rows[kept.job_ulid] is None
    assert rows[old.job_ulid] is not None


def test_after_a_restore_no_job_is_covered_twice():
    ended_job()
    checkpoints()
    new = ended_job()
    with transaction.atomic():
        events._change_append_only("update", "UPDATE runtime_job_events SET xid = '0'", [])
    read_everything_again()
    written = of("acme", checkpoints())
    assert list(written.jobs.values_list("job_ulid", flat=True)) == [new.job_ulid]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE evidence_checkpoints SET number = 9",
        "UPDATE evidence_checkpoints SET envelope = '{}'",
        "DELETE FROM evidence_checkpoints",
        "TRUNCATE evidence_checkpoints CASCADE",
        "UPDATE evidence_checkpoint_jobs SET head = ''",
        "DELETE FROM evidence_checkpoint_jobs",
        "TRUNCATE evidence_checkpoint_jobs",
    ],
)
def test_a_checkpoint_cannot_be_changed(change):
    ended_job()
    checkpoints()
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(change)


class TestFiles:
    def test_each_checkpoint_has_a_copy(self, folders):
        ended_job("acme")
        operator_event(None)
        written = checkpoints()
        assert file_checkpoints() == len(written)
        assert file_checkpoints() == 0
        envelope = json.loads((folders / "acme" / "00000001.dsse.json").read_bytes())
        assert envelope == of("acme", written).envelope
        assert (folders / "_installation" / "00000001.dsse.json").is_file()
        digests = {(file.org_slug, file.number): file.sha256 for file in checkpoint_files()}
        assert digests == {(one.org_slug, one.number): one.sha256 for one in written}

    def test_a_copy_is_never_replaced(self):
        ended_job()
        written = of("acme", checkpoints())
        path = file_of("acme", 1)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"payload": base64.b64encode(b"other").decode()}))
        file_checkpoints()
        assert hashlib.sha256(b"other").hexdigest() in {file.sha256 for file in checkpoint_files()}
        (finding,) = [finding for finding in run_audit(chains=True) if finding.code == "E6"]
        assert "another content" in str(finding)
        path.write_text(json.dumps(written.envelope))

    def test_a_folder_that_cannot_be_written_delays_only_the_copies(self, settings, tmp_path):
        ended_job()
        wait_for_older_transactions()
        folder, settings.CHECKPOINT_DIR = settings.CHECKPOINT_DIR, str(tmp_path / "a file")
        (tmp_path / "a file").write_text("")
        clock = [0.0]
        task = CheckpointTask(monotonic=lambda: clock[0])
        assert task.advance() == 0
        assert CheckpointJob.objects.count() == 1
        settings.CHECKPOINT_DIR = folder
        clock[0] += RETRY_SECONDS
        task.advance()
        assert not Checkpoint.objects.filter(filed_at=None).exists()
        assert len(list(checkpoint_files())) == Checkpoint.objects.count()

    def test_what_is_no_checkpoint_is_skipped_or_reported(self, folders):
        (folders / "acme").mkdir(parents=True)
        (folders / "acme" / "notes.dsse.json").write_text("{}")
        (folders / "acme" / ".00000001.dsse.json.1").write_text("{")
        assert list(checkpoint_files()) == []
        unreadable = folders / "acme" / "00000007.dsse.json"
        unreadable.write_bytes(b"\xff{")
        (found,) = checkpoint_files()
        assert (found.number, found.sha256) == (7, None)
        unreadable.unlink()
