"""The worker process: checks the machine, delivers spooled results, and runs the claim loop until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ulid import ULID

from workers.agent import open_files, signals
from workers.agent.active_leases import ActiveLeases
from workers.agent.checkout import Bounds, Checkout, Mirrors
from workers.agent.claim_loop import ClaimLoop
from workers.agent.context import WorkerContext
from workers.agent.crash import CrashHandler
from workers.agent.credentials import TokenFile
from workers.agent.errors import (
    RequestRejected,
    ServerUnreachable,
    TransientRefusal,
    WorkerCrashed,
    WorkerStartError,
)
from workers.agent.heartbeat import HeartbeatSender
from workers.agent.http import wire
from workers.agent.http.client import ClaimOffer, OrchestratorClient
from workers.agent.http.transport import Transport
from workers.agent.job_runner import JobRunner
from workers.agent.lease_watchdog import LeaseWatchdog
from workers.agent.result_delivery import ResultDelivery
from workers.agent.result_spool import ResultSpool
from workers.agent.retry import RetryBudget, retry
from workers.agent.slots import WorkerSlots
from workers.agent.upload import IngestClient, ingest_origin
from workers.agent.workspace import WorkFolder
from workers.engines.contract import Engine, EngineCapabilities, EngineUnavailable, Isolation, RunLimits
from workers.report.trace_reader import TraceReaders

logger = logging.getLogger(__name__)

SPOOL_DELIVERY_SECONDS = 60.0
MAX_OUTPUT_BYTES = 48 << 20  # the server stores 50 MiB of a log, with the worker's own lines
TOOLS = ("git", "setpriv", "prlimit")
WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class WorkerOptions:
    """The options of a worker. `ingest_url` empty: the server's own. `ingest_token_file` None: the worker's token."""

    server: str
    token_file: Path
    worker_id: str | None
    pool: str
    work_dir: Path
    capacity: int = 1
    mirrors: Mapping[str, str] = field(default_factory=dict)
    ingest_url: str = ""
    ingest_token_file: Path | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    bounds: Bounds = field(default_factory=Bounds)
    upload_seconds: float = 600.0


class WorkerProcess:
    """One worker process. `run` is called once, in the main thread. Raises WorkerStartError."""

    def __init__(self, options: WorkerOptions, engine: Engine) -> None:
        self._options = options
        self._engine = engine
        self._token = TokenFile(options.token_file)
        # Sessions are compared as text: the newest process of a worker is the one that counts.
        self._client = OrchestratorClient(options.server, self._token, str(ULID()).lower())
        self._crash_handler = CrashHandler()

    def run(self, *, once: bool = False) -> None:
        """Work until a signal drains the worker, or for one claim.

        Raises:
            WorkerStartError: The worker may not start, or may not continue to claim.
            WorkerCrashed: A critical thread failed.
        """
        self._check_limits()
        open_files.raise_limit(self._options.capacity)
        with contextlib.ExitStack() as stack:
            stack.callback(self._client.close)
            folder = stack.enter_context(contextlib.closing(WorkFolder(self._options.work_dir)))
            slots = WorkerSlots(self._options.capacity, reserve=self._engine.reserved)
            stack.enter_context(contextlib.closing(slots))
            found = self._preflight(folder, slots)
            stack.callback(self._engine.clean, slots.numbers)
            delivery = self._delivery(folder, stack)
            context = self._context(folder, found, delivery, stack)
            loop = ClaimLoop(
                client=self._client,
                offer=self._offer(context, found),
                slots=slots,
                unready=context.unready,
                start_attempt=lambda claimed: JobRunner(context, claimed.lease, claimed.slot, claimed.next_claim),
            )
            with signals.handled(loop.drain, loop.abandon):
                self._crash_handler.stop_jobs_with(loop.abandon)
                self._deliver_spooled(delivery, loop.draining)
                self._fail_abandoned(delivery.spool, loop.draining)
                loop.run(once=once)
            if self._crash_handler.thread_name is not None:
                raise WorkerCrashed(f"the worker ended because its thread {self._crash_handler.thread_name} failed")

    def _offer(self, context: WorkerContext, found: EngineCapabilities) -> ClaimOffer:
        job_types = wire.JOB_TYPES if context.images is None else (*wire.JOB_TYPES, *wire.IMAGE_JOB_TYPES)
        able = capabilities(found, self._engine.isolation)
        return ClaimOffer(context.worker_id, self._options.pool, able, job_types)

    def _check_limits(self) -> None:
        limits = self._options.limits
        if min(limits.log_head_bytes, limits.log_tail_bytes) < 0 or limits.output_bytes > MAX_OUTPUT_BYTES:
            raise WorkerStartError(
                f"WORKER_LOG_HEAD_BYTES and WORKER_LOG_TAIL_BYTES must be 0 or more, and at most {MAX_OUTPUT_BYTES:,} "
                "bytes together"
            )

    def _preflight(self, folder: WorkFolder, slots: WorkerSlots) -> EngineCapabilities:
        """Test the engine and clean up after a killed worker. Raises WorkerStartError."""
        if not_installed := [name for name in TOOLS if shutil.which(name) is None]:
            raise WorkerStartError(f"not installed on this machine: {', '.join(not_installed)}")
        found = self._engine.check()
        for soft in found.soft:
            logger.warning("limit is measured, not enforced engine=%s limit=%r", self._engine.name, soft)
        for missing in found.missing:
            logger.error("engine check failed engine=%s missing=%r", self._engine.name, missing)
        if found.missing:
            raise WorkerStartError(f"engine {self._engine.name} cannot run here: {'; '.join(found.missing)}")
        if any(self._engine.owner(slot) is not None for slot in slots.numbers):
            folder.require_traversable()
        self._engine.clean(slots.numbers)
        folder.remove_all()
        self._make_directories(folder, slots)
        return found

    def _make_directories(self, folder: WorkFolder, slots: WorkerSlots) -> None:
        """Make the volumes of all slots at the start.

        No job waits for its volume, and a work directory that cannot hold them is refused here.
        """
        try:
            for slot in slots.numbers:
                self._engine.directory(slot, folder.jobs, self._options.limits)
        except EngineUnavailable as missing:
            self._engine.clean(slots.numbers)
            raise WorkerStartError(f"{missing}: use another --work-dir, or set WORKER_DISK_VOLUMES=false") from None

    def _delivery(self, folder: WorkFolder, stack: contextlib.ExitStack) -> ResultDelivery:
        origin = ingest_origin(self._client.server, self._options.ingest_url)
        own = self._options.ingest_token_file
        if own is None and origin != self._client.server:
            logger.warning("no token for INGEST_URL: runs are uploaded without one origin=%s", origin)
        token = TokenFile(own) if own else self._token if origin == self._client.server else None
        transport = stack.enter_context(contextlib.closing(Transport(origin, token.current if token else lambda: "")))
        ingest = IngestClient(transport, token=token)
        return ResultDelivery(self._client, ingest, ResultSpool(folder.spool), self._options.upload_seconds)

    def _context(
        self, folder: WorkFolder, found: EngineCapabilities, delivery: ResultDelivery, stack: contextlib.ExitStack
    ) -> WorkerContext:
        leases = ActiveLeases()
        heartbeat = HeartbeatSender(self._client, leases, crash_handler=self._crash_handler)
        for thread in (heartbeat, LeaseWatchdog(leases, crash_handler=self._crash_handler)):
            thread.start()
            stack.callback(thread.close)
        return WorkerContext(
            worker_id=self._worker_id(),
            client=self._client,
            heartbeat=heartbeat,
            engine=self._engine,
            offered=found.offered,
            checkout=Checkout(Mirrors(self._options.mirrors), self._options.bounds),
            folder=folder,
            spool=delivery.spool,
            delivery=delivery,
            trace_readers=stack.enter_context(contextlib.closing(TraceReaders())),
            limits=self._options.limits,
        )

    def _worker_id(self) -> str:
        worker_id = self._options.worker_id or self._token.worker_id
        if not worker_id or not WORKER_ID.fullmatch(worker_id):
            raise WorkerStartError(
                "the worker id is missing or invalid: set --worker-id, or write it below the token in the token file"
            )
        return worker_id

    def _deliver_spooled(self, delivery: ResultDelivery, over: threading.Event) -> None:
        # Nothing renews those leases: trying for longer than one lasts is useless.
        upload_seconds = min(delivery.upload_seconds, SPOOL_DELIVERY_SECONDS)
        delivery = replace(delivery, upload_seconds=upload_seconds, message_seconds=SPOOL_DELIVERY_SECONDS)
        for entry in delivery.spool.pending():
            job_id = entry.lease.job.job_id
            if entry.server != self._client.server:
                logger.warning("spooled result kept: it is for another server job=%s server=%s", job_id, entry.server)
                continue
            logger.info("delivering spooled result of an earlier process job=%s", job_id)
            delivery.deliver(entry, over=over)

    def _fail_abandoned(self, spool: ResultSpool, over: threading.Event) -> None:
        """Fail the jobs that an earlier process of this worker was executing when it was killed.

        Their leases count against the capacity until they end, and nothing renews them: without this a restarted worker
        waits for their expiry. The server retries such a job by its policy.
        """
        result = {"reason": "worker_shutdown", "message": "The worker process ended while it ran the job."}
        for lease in spool.abandoned_leases(self._client.server):
            job_id = lease.job.job_id
            try:
                retry(partial(self._client.fail, lease, result), budget=RetryBudget(over, SPOOL_DELIVERY_SECONDS))
                logger.warning("job failed: an earlier process was killed while it ran job=%s", job_id)
            except (ServerUnreachable, TransientRefusal) as error:
                logger.warning("abandoned lease left to expire job=%s error=%r", job_id, str(error))
                continue
            except RequestRejected as rejection:
                logger.info("abandoned lease has ended job=%s reason=%r", job_id, str(rejection))
            spool.forget_lease(lease)


def capabilities(found: EngineCapabilities, isolation: Isolation) -> dict[str, bool]:
    """Return the capabilities that are sent with a claim.

    The server reads the isolation from the last two. `resend` means that the worker can handle a job that only uploads
    a run.
    """
    names = dict.fromkeys(sorted(found.offered), True)
    return names | {
        "resend": True,
        "namespaces": isolation is Isolation.NAMESPACES,
        "restricted": isolation is Isolation.RESTRICTED,
    }
