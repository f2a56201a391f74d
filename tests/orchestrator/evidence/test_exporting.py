"""Export jobs: served by the dispatchers under the lease, quota, cancel and log of every job."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.evidence import exporting
from orchestrator.evidence.exporting import ExportServer
from orchestrator.evidence.models import AuditBundle, SigningKey
from orchestrator.evidence.signing_keys import SigningKeyError, public_keys
from orchestrator.evidence.verifying import verify_bundle
from orchestrator.processes.dispatcher import DispatcherProcess
from orchestrator.services import credentials, expiry, worker_state
from orchestrator.step_logs.job_log_reads import stored
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.read_snapshot import SnapshotTimeout
from tests.api_client import Caller, refused
from tests.factories import OPERATOR, OrganizationFactory, PoolFactory, ProjectFactory, api_token
from tests.live_server import eventually
from tests.orchestrator.protocols.stella.requests import claim, complete, ok, row_of, submit
from workers.models import Pool, Worker

pytestmark = pytest.mark.django_db(transaction=True)
SINCE = "2026-01-01T00:00:00Z"
PAYLOAD = {"format": "audit-bundle", "since": SINCE}


def export(caller, **changes):
    return submit(caller, jobType="export", payload=PAYLOAD | changes)


def content_of(artifact) -> bytes:
    return exporting.artifact_storage().read(artifact.object_key, 0, artifact.byte_count + 1)


def ended(shown) -> Job:
    return Job.objects.get(pk=row_of(shown).pk)


class TestServing:
    def test_a_bundle_is_an_artifact_of_its_job(self, alice, worker):
        submit(alice)
        complete(claim(worker))
        shown = export(alice)
        assert ExportServer().serve_next()
        assert ok(alice.get(f"/api/jobs/{shown['jobId']}"))["status"] == "completed"
        (listed,) = ok(alice.get(f"/runs/{shown['jobId']}/artifacts"))["results"]
        assert listed["name"] == "audit-bundle.tar.gz"
        bundle = content_of(StoredArtifact.objects.get())
        found = verify_bundle(io.BytesIO(bundle), public_keys())
        assert found.tenant == "acme"
        assert found.since == SINCE
        assert found.lines["jobs.jsonl"] == 1, "the export itself was queued at the end of its time"
        outputs = ended(shown).result["outputs"]
        assert outputs["sha256"] == listed["sha256"] == found.sha256
        assert not ExportServer().serve_next()

    def test_the_dispatcher_serves_it(self, alice):
        shown = export(alice)
        DispatcherProcess(connections=1).run_due()
        assert ended(shown).state == "succeeded"

    def test_a_running_dispatcher_serves_it(self, alice):
        process = DispatcherProcess(connections=1, poll_seconds=0.05)
        thread = threading.Thread(target=process.run)
        thread.start()
        try:
            shown = export(alice)
            eventually(lambda: ended(shown).state == "succeeded")
        finally:
            process.stop()
            thread.join()

    def test_its_log_has_what_was_written(self, alice):
        shown = export(alice)
        ExportServer().serve_next()
        text = b"".join(stored(ended(shown).job_ulid)).decode()
        assert "jobs.jsonl: 0 lines" in text
        assert "SHA-256" in text

    def test_other_exports_wait_for_workers_of_the_tenant(self, alice, worker):
        shown = submit(alice, jobType="export", payload={"imageRef": "nginx"})
        assert not ExportServer().serve_next()
        complete(claim(worker))
        assert ended(shown).state == "succeeded"

    def test_a_worker_of_the_tenant_gets_no_bundle_to_write(self, alice, worker):
        export(alice)
        with pytest.raises(AssertionError):
            claim(worker)

    def test_the_pool_is_reserved(self):
        pool = PoolFactory(slug="exports")
        with pytest.raises(Invalid):
            credentials.register_worker(
                slug="mine", pool=pool, capacity=1, labels=[], capabilities=[], cause=Cause(OPERATOR)
            )

    def test_the_worker_is_created_once(self, alice):
        for _ in range(2):
            export(alice)
        server = ExportServer()
        assert server.serve_next()
        assert server.serve_next()
        assert Worker.objects.get().slug == "audit-exports"
        assert Pool.objects.filter(slug="exports").count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"since": None},
        {"since": "yesterday"},
        {"since": "2026-01-01"},
        {"since": "2026-02-30T00:00:00Z"},
        {"since": 5},
        {"until": SINCE},
        {"until": "2025-01-01T00:00:00Z"},
        {"until": "later"},
        {"tenant": "intruder"},
    ],
    ids=str,
)
def test_a_time_that_is_not_valid_is_refused(alice, changes):
    body = {"jobType": "export", "payload": PAYLOAD | changes}
    refused(lambda: alice.post("/api/jobs", body), 400, "invalid")
    assert not Job.objects.exists()


class TestTrouble:
    def stop(self, monkeypatch, raised):
        def write(*_, **__):
            raise raised

        monkeypatch.setattr(exporting, "write_bundle", write)

    @pytest.mark.parametrize(
        ("raised", "reason"),
        [
            (SnapshotTimeout("too long"), "timed_out"),
            (SigningKeyError("no key"), "worker_error"),
            (OSError(errno.ENOSPC, "No space left on device"), "worker_disk_full"),
            (OSError(errno.EIO, "Input/output error"), "upload_failed"),
            (RuntimeError("bug"), "worker_error"),
        ],
        ids=["time", "key", "disk", "storage", "bug"],
    )
    def test_what_goes_wrong_is_the_reason_of_the_failure(self, alice, monkeypatch, raised, reason):
        self.stop(monkeypatch, raised)
        shown = export(alice)
        assert ExportServer().serve_next()
        assert (ended(shown).state, ended(shown).failure_reason) == ("failed", reason)
        assert not StoredArtifact.objects.exists()

    def test_a_full_disk_leaves_neither_row_nor_bytes(self, alice, monkeypatch, tmp_path):
        class Full:
            def put(self, *_):
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(exporting, "artifact_storage", Full)
        shown = export(alice)
        ExportServer().serve_next()
        assert ended(shown).failure_reason == "worker_disk_full"
        assert ok(alice.get(f"/runs/{shown['jobId']}/artifacts"))["results"] == []
        assert not [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]

    def test_a_storage_quota_refuses_it(self, alice, project):
        plan = project.organization.plan
        plan.max_stored_bytes = 10
        plan.save()
        shown = export(alice)
        ExportServer().serve_next()
        assert ended(shown).failure_reason == "upload_rejected"

    def test_a_cancel_stops_it(self, alice, monkeypatch):
        shown = export(alice)

        def write(_file, _scope, *, max_seconds, on_page):
            ok(alice.post(f"/api/jobs/{shown['jobId']}/cancel", {"reason": "enough"}), 202)
            eventually(lambda: stopped(on_page))

        monkeypatch.setattr(exporting, "BEATS_PER_INTERVAL", 1000)
        monkeypatch.setattr(exporting, "write_bundle", write)
        ExportServer().serve_next()
        assert ended(shown).state == "canceled"

    def test_a_lease_that_was_revoked_stops_it(self, alice, monkeypatch):
        shown = export(alice)

        def write(_file, _scope, *, max_seconds, on_page):
            worker_state.revoke(job_ulid=ended(shown).job_ulid, actor=OPERATOR, reason="test")
            eventually(lambda: stopped(on_page))

        monkeypatch.setattr(exporting, "BEATS_PER_INTERVAL", 1000)
        monkeypatch.setattr(exporting, "write_bundle", write)
        ExportServer().serve_next()
        assert not StoredArtifact.objects.exists()

    def test_a_process_that_ends_gives_it_to_another_one(self, alice):
        submit(alice)  # a page after which the process asks
        shown = export(alice)
        assert ExportServer(is_stopping=lambda: True).serve_next()
        first = Job.objects.get(root_job_ulid=row_of(shown).root_job_ulid, attempt=1)
        assert first.failure_reason == "worker_shutdown"
        assert ExportServer().serve_next()
        assert ended(shown).state == "succeeded"


def stopped(on_page) -> bool:
    """Whether the page raises what ends the export, which it then does."""
    on_page()
    return False


KILLED = """
import os, signal, sys, django
django.setup()
from orchestrator.evidence import bundle_writing, exporting
def kill(*_):
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
bundle_writing._write_throttles = kill
exporting.ExportServer().serve_next()
"""


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_nothing(alice, tmp_path, settings, database_url):
    shown = export(alice)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "config.settings"}
    environment |= {"TMPDIR": str(temporary), "SIGNING_KEY_DIR": settings.SIGNING_KEY_DIR, "PYTHONPATH": str(BASE_DIR)}
    ran = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "writing\n"), ran.stderr
    assert list(temporary.iterdir()) == []
    assert not StoredArtifact.objects.exists()
    expiry.expire(job_ulid=row_of(shown).job_ulid, now=Lease.objects.get().expires_at)
    assert ExportServer().serve_next()
    assert ended(shown).state == "succeeded"
    assert ended(shown).attempt == 2


def test_another_tenant_cannot_read_the_bundle(alice):
    shown = export(alice)
    ExportServer().serve_next()
    intruder = Caller(api_token(ProjectFactory(organization=OrganizationFactory(slug="intruder")).organization))
    for path in (f"/runs/{shown['jobId']}/artifacts", f"/runs/{shown['jobId']}/artifacts/audit-bundle.tar.gz"):
        refused(partial(intruder.get, path), 404, "not_found")


def test_what_was_written_is_recorded(alice):
    shown = export(alice, until="2026-02-01T00:00:00+01:00")
    ExportServer().serve_next()
    row = AuditBundle.objects.get()
    assert (row.org_slug, row.job_ulid, row.sha256) == (
        "acme",
        ended(shown).job_ulid,
        ended(shown).result["outputs"]["sha256"],
    )
    assert row.until.isoformat() == "2026-01-31T23:00:00+00:00"
    assert row.key_id == SigningKey.objects.get().key_id
