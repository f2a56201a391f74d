"""Executes the `export` jobs that ask for an audit bundle, in the dispatchers: claim, write, store, complete.

Lease, heartbeats, cancel, log and quota are those of every job. A dispatcher that is killed leaves an expired lease,
and the job is retried as any other whose worker was lost.
"""

import errno
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, Final, Self

from django.conf import settings
from django.db import connection

from leases.errors import StaleLease
from leases.models import Lease
from leases.scheduling.claims import Offer
from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.operations import complete_upload
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.evidence import exports
from orchestrator.evidence.bundle_writing import BundleScope, WrittenBundle, write_bundle
from orchestrator.evidence.checkpoints import request_checkpoints
from orchestrator.evidence.exports import WORKER_SLUG
from orchestrator.evidence.signing_keys import SigningKeyError
from orchestrator.services import claiming, heartbeat, job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.errors import StorageQuotaExceeded
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.read_snapshot import SnapshotTimeout
from runtime_jobs.specs.exports import BUNDLE_NAME, export_period
from runtime_jobs.specs.payload import EXPORT
from runtime_jobs.states import FailureReason, JobState
from workers.models import Worker

log = logging.getLogger(__name__)

BEATS_PER_INTERVAL: Final = 3  # of the lease: one lost heartbeat must not end the export
SEEN_SECONDS: Final = 20.0  # a worker that claims more rarely counts as silent
_BLOCK_BYTES: Final = 1 << 16
_ISOLATION: Final = "microvm"  # nothing is executed, so each level of isolation is provided


class ExportStopped(Exception):
    """The export cannot continue: it was canceled, its lease was lost, or the process ends."""


class ExportServer:
    """Serves one export after the other in the calling thread."""

    def __init__(self, *, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Prepare.

        Args:
            is_stopping: Returns whether the process ends. A running export is then given to another dispatcher.
        """
        self._is_stopping = is_stopping
        self._seen_at = 0.0

    def serve_next(self, *, now: datetime | None = None) -> bool:
        """Execute the next export.

        Returns:
            Whether there was one.
        """
        worker = self._claiming_worker()
        if worker is None:
            return False
        offer = Offer(worker.worker_id, worker.pool.slug, (EXPORT,), frozenset(), _ISOLATION)
        claimed = claiming.claim(worker=worker, offer=offer, now=now)
        if claimed is None:
            return False
        _Export(claimed.job, claimed.lease, worker, self._is_stopping).execute()
        return True

    def _claiming_worker(self) -> Worker | None:
        """Return the worker if a claim is useful: for a waiting export, or so that the worker is not silent."""
        if Job.objects.queued().filter(pool=settings.EXPORT_POOL).exists():
            return exports.ensure_export_worker()
        if time.monotonic() < self._seen_at + SEEN_SECONDS:
            return None
        self._seen_at = time.monotonic()
        return Worker.objects.select_related("pool").filter(slug=WORKER_SLUG).first()


class _Export:
    """One export under its lease."""

    def __init__(self, job: Job, lease: Lease, worker: Worker, is_stopping: Callable[[], bool]) -> None:
        self._job, self._lease_ulid, self._worker = job, lease.lease_ulid, worker
        self._is_stopping = is_stopping
        self._beats = _Heartbeats(lease.lease_ulid, worker, job.heartbeat_interval_seconds)
        self._chunks = 0

    def execute(self) -> None:
        try:
            with self._beats:
                self._write()
        except StaleLease:
            log.warning("export %s: the lease has ended; another attempt follows", self._job.job_ulid)
        except ExportStopped:
            self._end_stopped()
        except SnapshotTimeout as error:
            self._fail(FailureReason.TIMED_OUT, str(error))
        except StorageQuotaExceeded as error:
            self._fail(FailureReason.UPLOAD_REJECTED, error.message)
        except SigningKeyError as error:
            self._fail(FailureReason.WORKER_ERROR, str(error))
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason = FailureReason.WORKER_DISK_FULL if is_full else FailureReason.UPLOAD_FAILED
            self._fail(reason, f"The bundle cannot be stored: {error.strerror}.")
        except Exception as error:
            if is_connection_lost(error):
                raise  # the lease expires, and the job is retried
            log.exception("export %s failed", self._job.job_ulid)
            self._fail(FailureReason.WORKER_ERROR, f"The export failed: {type(error).__name__}. The log has more.")

    def _write(self) -> None:
        request_checkpoints()  # so that what the bundle has is signed also where its reader does not receive it
        period = export_period(self._job.spec["payload"])
        scope = BundleScope(self._job.org_slug, period.since, period.until or self._job.created_at)
        heartbeat.report(lease_ulid=self._lease_ulid, worker=self._worker, phase=JobState.EXECUTING)
        self._print(f"jobs of {scope.tenant} from {scope.since.isoformat()} until {scope.until.isoformat()}")
        with tempfile.TemporaryFile() as file:
            bundle = write_bundle(file, scope, max_seconds=settings.SNAPSHOT_SECONDS, on_page=self._require_lease)
            for name, lines in bundle.lines.items():
                self._print(f"{name}: {lines} lines")
            heartbeat.report(lease_ulid=self._lease_ulid, worker=self._worker, phase=JobState.UPLOADING)
            artifact = self._store(file, bundle)
        self._print(f"{artifact.name}: {bundle.size} bytes, SHA-256 {bundle.sha256}")
        exports.record_audit_bundle(
            org_slug=scope.tenant,
            job_ulid=self._job.job_ulid,
            since=scope.since,
            until=scope.until,
            size_bytes=bundle.size,
            sha256=bundle.sha256,
            key_id=bundle.key_id,
            lines=bundle.lines,
        )
        outputs = {"artifact": artifact.name, "sizeBytes": bundle.size, "sha256": bundle.sha256, "lines": bundle.lines}
        job_end.complete(lease_ulid=self._lease_ulid, worker=self._worker, exit_code=0, result={"outputs": outputs})

    def _store(self, file: IO[bytes], bundle: WrittenBundle) -> StoredArtifact:
        artifact = piece_operations.begin_lease_artifact(
            lease_ulid=self._lease_ulid, worker=self._worker, name=BUNDLE_NAME, size_bytes=bundle.size
        )
        # Before the transaction that completes the row, which may not wait for a slow storage. If the process is killed
        # between both, housekeeping deletes the object with its row.
        file.seek(0)
        artifact_storage().put(artifact.object_key, _blocks(file))
        return complete_upload(
            StoredArtifact, artifact.pk, size_bytes=bundle.size, sha256=bundle.sha256, publish=lambda: None
        )

    def _require_lease(self) -> None:
        """Stop the export if it was canceled, its lease was lost, or the process ends."""
        if self._is_stopping() or self._beats.is_canceled:
            raise ExportStopped
        if self._beats.is_lost:
            raise StaleLease("expired")

    def _end_stopped(self) -> None:
        try:
            if self._beats.is_canceled:
                job_end.acknowledge_cancel(lease_ulid=self._lease_ulid, worker=self._worker)
            else:
                self._fail(FailureReason.WORKER_SHUTDOWN, "The dispatcher ends. Another one writes the bundle.")
        except StaleLease:
            log.warning("export %s: the lease ended before the cancel was acknowledged", self._job.job_ulid)

    def _fail(self, reason: FailureReason, message: str) -> None:
        try:
            job_end.fail(lease_ulid=self._lease_ulid, worker=self._worker, reason=reason, message=message)
        except StaleLease:
            log.warning("export %s: the lease ended before the failure %s was recorded", self._job.job_ulid, reason)

    def _print(self, line: str) -> None:
        """Append a line to the log of the job."""
        chunk = f"{line}\n".encode()
        job_log_writes.append_log(lease_ulid=self._lease_ulid, worker=self._worker, seq=self._chunks, chunk=chunk)
        self._chunks += 1


class _Heartbeats:
    """Extends a lease in a thread with a connection of its own: the export has a transaction open for minutes.

    Attributes:
        is_canceled: A cancel was requested.
        is_lost: The lease has ended.
    """

    def __init__(self, lease_ulid: str, worker: Worker, interval_seconds: float) -> None:
        self.is_canceled = self.is_lost = False
        self._lease_ulid, self._worker = lease_ulid, worker
        self._pause = interval_seconds / BEATS_PER_INTERVAL
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="export-heartbeats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._ended.wait(self._pause) and not self.is_lost:
                self._renew()
        finally:
            connection.close()

    def _renew(self) -> None:
        try:
            renewed = heartbeat.renew(lease_ulid=self._lease_ulid, worker=self._worker)
        except StaleLease:
            self.is_lost = True
        except Exception:
            log.exception("a heartbeat of an export failed; the next one follows")
            connection.close()
        else:
            self.is_canceled = renewed.job.cancel_requested_at is not None


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block
