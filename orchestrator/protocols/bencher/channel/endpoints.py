"""The ASGI applications of both sockets: handshake, session, and the operations of the session in threads.

A handshake is refused with a response in the envelope of this protocol: 401, 403, 404, 409, 429 or 503.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from leases.errors import WorkerLocked
from leases.fencing import newest_holding
from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.principals import WorkerPrincipal
from orchestrator.http.asgi.body_limit import Message, Receive, Send
from orchestrator.http.asgi.call_groups import CallGroup
from orchestrator.http.asgi.client_identity import ClientIdentities
from orchestrator.http.asgi.responses import PATH_PARAMS, ROUTE, overloaded, refuse_websocket
from orchestrator.http.asgi.sockets import SocketDriver, SocketSession, handshake_request
from orchestrator.http.asgi.thread_pools import OVERLOADS, ThreadPool
from orchestrator.http.asgi.websocket_protocol import EXTENSION, WebSocketConnection
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError, to_api_error
from orchestrator.http.observability.access_log import AccessLogEntry
from orchestrator.http.observability.request_context import new_context
from orchestrator.protocols.bencher.authentication import authenticate_runner
from orchestrator.protocols.bencher.channel import messages, operations
from orchestrator.protocols.bencher.channel.claims import (
    JobWait,
    RunnerClaim,
    claim_for_channels,
    claim_for_runner,
    give_back,
)
from orchestrator.protocols.bencher.channel.heartbeats import HeartbeatBatcher
from orchestrator.protocols.bencher.channel.operations import FinalOutcome, LeaseRef, leased_job
from orchestrator.protocols.bencher.channel.presence import ChannelPresence
from orchestrator.protocols.bencher.channel.session import (
    ChannelSession,
    Claim,
    Expire,
    Finish,
    FinishLate,
    GrantedJob,
    JobSession,
    LeasedJob,
    MarkRunning,
    Release,
    Renew,
    Reply,
)
from orchestrator.protocols.bencher.request_rates import register_connect
from orchestrator.protocols.bencher.resource_ids import parse_uuid
from orchestrator.protocols.bencher.states import BencherStatus, job_status
from orchestrator.pubsub.hub import hub_of_running_loop
from orchestrator.results.processing import process
from runtime_jobs.db_errors import fault_of, log_level_of
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job
from workers.models import Worker

log = logging.getLogger(__name__)

T = TypeVar("T")

SUBPROTOCOL_PREFIX: Final = "bearer."
ACK_SECONDS: Final = 4.0  # a runner sends its result again after 5 s without an acknowledgement
RESULT_THREADS: Final = 2
MAX_UNREAD_RESULTS: Final = 32  # in memory; further ones are read from the store by the scheduler process
DATABASE_PAUSE_SECONDS: Final = 1.0
_IN_EXECUTION: Final = frozenset({BencherStatus.CLAIMED, BencherStatus.RUNNING})


class RunnerSockets:
    """Both sockets, with what all connections of a process share."""

    def __init__(self, threads: ThreadPool, identities: ClientIdentities) -> None:
        """Prepare.

        Args:
            threads: The threads of requests.
            identities: The clients of requests, by which connections take turns for a thread.
        """
        self.threads, self.identities = threads, identities
        self.result_threads = ThreadPool("result", threads=RESULT_THREADS, queue=MAX_UNREAD_RESULTS)
        self.heartbeats = HeartbeatBatcher(self._renew_leases)
        self.claims = CallGroup("claims of runners", claim_for_channels, ThreadPool("claim", threads=1, queue=0))
        self.presence = ChannelPresence(threads)
        self._background: set[asyncio.Task[None]] = set()

    async def channel(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve `/v0/runners/{runner}/channel`."""
        worker = await self._handshake(scope, receive, send, _authenticate)
        if worker is None:
            return
        session = ChannelSession(silence_seconds=settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS, now=time.monotonic())
        with self.presence.opened(session, worker):
            await self._serve(session, worker, scope, receive, send)

    async def job(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve `/v0/runners/{runner}/jobs/{job}` (contract 0.2)."""
        found = await self._handshake(scope, receive, send, _authorize_job)
        if found is None:
            return
        worker, job = found
        session = JobSession(
            silence_seconds=settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS,
            now=time.monotonic(),
            job=job,
            has_subprotocol=_subprotocol(scope) is not None,
        )
        await self._serve(session, worker, scope, receive, send)

    async def _handshake(self, scope: Message, receive: Receive, send: Send, admit: Callable[[Message], T]) -> T | None:
        """Accept the connection, or refuse it and return None.

        Args:
            scope: The ASGI scope.
            receive: Its ASGI channel for incoming messages.
            send: Its ASGI channel for outgoing messages.
            admit: Checks the request in a thread, and returns what the session needs.
        """
        await receive()
        headers = dict(scope["headers"])
        context = new_context(_latin1(headers.get(b"x-request-id")), _latin1(headers.get(b"traceparent")))
        client = self.identities.identify(scope)
        if self.threads.is_full(client):
            OVERLOADS.labels(self.threads.name).inc()
            refusal = overloaded("Too many requests wait for a thread of this process.")
            await refuse_websocket(scope, receive, send, refusal)
            return None
        try:
            admitted = await self.threads.run(release_connection_after(admit), scope, client=client)
        except Exception as error:  # noqa: BLE001 every exception has a response
            await refuse_websocket(scope, receive, send, to_api_error(error, context.request_id))
            return None
        connection = scope.get("extensions", {}).get(EXTENSION)
        if isinstance(connection, WebSocketConnection):
            connection.cut_messages(settings.RUNNER_MESSAGE_LIMIT_BYTES)
        await send({"type": "websocket.accept", "subprotocol": _subprotocol(scope)})
        AccessLogEntry(context, "GET", scope[ROUTE]).record(101)
        return admitted

    async def _serve(
        self, session: SocketSession, worker: Worker, scope: Message, receive: Receive, send: Send
    ) -> None:
        self.identities.accept(scope, WorkerPrincipal(worker))
        performer = _Performer(self, worker)
        await SocketDriver(session, performer.perform, scope, receive, send).run()

    async def _renew_leases(self, jobs: list[LeasedJob], running: set[str]) -> dict[str, Reply]:
        return await self.threads.run(_renew_leases, jobs, running, client="heartbeats of runners")

    async def read_result(self, outcome: FinalOutcome, *, seconds: float) -> None:
        """Read the result of a job, and return when that has ended or the time is up.

        Args:
            outcome: The outcome of the final message.
            seconds: The longest wait. The result is read in any case.
        """
        if outcome.unread_job is None:
            return
        if outcome.is_stored and self.result_threads.is_full():
            log.warning("the result of job %s is read later: too many wait", outcome.unread_job.job_ulid)
            return
        reading = asyncio.create_task(self._read_result(outcome.unread_job, outcome.output))
        self._background.add(reading)
        reading.add_done_callback(self._background.discard)
        await asyncio.wait({reading}, timeout=max(0.0, seconds))

    async def _read_result(self, job: Job, output: bytes) -> None:
        try:
            await self.result_threads.run(_process, job, output, client=job.org_slug)
        except Exception:
            log.exception("the result of job %s was not read; the scheduler process reads it again", job.job_ulid)


class _Performer:
    """Executes the operations of one session."""

    def __init__(self, sockets: RunnerSockets, worker: Worker) -> None:
        self._sockets, self._worker = sockets, worker
        self._client: Hashable = ("principal", worker.worker_id)

    async def perform(self, operation: Any, ended: "asyncio.Future[None]") -> Any:
        """Execute an operation, and return its result; see `session`."""
        if isinstance(operation, Claim):
            return await self._claim(operation.until, ended)
        return await self._persistently(ended, lambda: self._attempt(operation))

    def _attempt(self, operation: Any) -> Awaitable[Any]:
        match operation:
            case MarkRunning(job):
                attempt: Awaitable[Any] = self._sockets.heartbeats.renew(job, is_running=True)
            case Renew(job, can_wait):
                attempt = self._sockets.heartbeats.renew(job, can_wait=can_wait)
            case Finish(job, frame):
                attempt = self._finish(operations.finish, job, frame)
            case FinishLate(frame):
                attempt = self._finish(operations.finish_late, self._worker, frame)
            case Expire(job):
                attempt = self._run(operations.expire, job)
            case Release(job):
                attempt = self._run(_release, job)
        return attempt

    async def _claim(self, until: float, ended: "asyncio.Future[None]") -> GrantedJob | None:
        wait = JobWait(self._worker, hub=hub_of_running_loop(), claim=self._attempt_claim)
        found = await wait.claim(until, ended)
        return None if found is None else _granted(found, self._worker)

    async def _attempt_claim(self, worker: Worker) -> RunnerClaim:
        found = await self._sockets.claims.answer(worker, self._client)
        if isinstance(found, WorkerLocked):
            return await self._run(claim_for_runner, worker)
        if isinstance(found, Exception):
            raise found
        return found

    async def _finish(self, function: Callable[..., FinalOutcome], *values: object) -> Reply:
        began = time.monotonic()
        outcome = await self._run(function, *values)
        await self._sockets.read_result(outcome, seconds=began + ACK_SECONDS - time.monotonic())
        return outcome.reply

    async def _run(self, function: Callable[..., T], *values: object) -> T:
        return await self._sockets.threads.run(release_connection_after(function), *values, client=self._client)

    async def _persistently(self, ended: "asyncio.Future[None]", attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat an operation while the database cannot be reached, until the lease has expired in any case.

        Every operation may be repeated. The connection would otherwise be dropped for a restart of the database, and
        the runner's heartbeats with it.
        """
        until = time.monotonic() + settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS
        while True:
            try:
                return await attempt()
            except (DatabaseError, InterfaceError) as error:
                if fault_of(error) is None or ended.done() or time.monotonic() > until:
                    raise
                log.log(log_level_of(error), "an operation of a runner is repeated: %s", type(error).__name__)
            await asyncio.wait({ended}, timeout=DATABASE_PAUSE_SECONDS)


def _granted(found: RunnerClaim, worker: Worker) -> GrantedJob:
    assert found.claimed is not None  # noqa: S101 `JobWait.claim` returns jobs only
    return GrantedJob(leased_job(found.claimed.lease, worker), messages.render_job(found.claimed_job))


def _release(job: LeasedJob) -> None:
    assert isinstance(job.handle, LeaseRef)  # noqa: S101 `leased_job` makes all of them
    give_back(job.handle.lease_ulid, job.handle.worker)


@release_connection_after
def _renew_leases(jobs: list[LeasedJob], running: set[str]) -> dict[str, Reply]:
    replies = operations.renew_leases(jobs, running)
    touch_last_seen(*(job.handle.worker for job in jobs))
    return replies


_process = release_connection_after(process)


# --- Handshakes, in a thread ------------------------------------------------------------------------------------------


def _authenticate(scope: Message) -> Worker:
    """Return the runner of a handshake, after counting the connection.

    Raises:
        ApiError: 401, 403 or 429.
    """
    request = handshake_request(scope)
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        raise ApiError(403, "https_required", "Use wss, and rotate the key: it was sent in plain text.")
    header = request.META.get("HTTP_AUTHORIZATION")
    if header is None and (subprotocol := _subprotocol(scope)) is not None:
        header = f"Bearer {subprotocol.removeprefix(SUBPROTOCOL_PREFIX)}"
    worker = authenticate_runner(header, scope[PATH_PARAMS]["runner"], network=rate_limit_key(request))
    register_connect(worker)
    return worker


def _authorize_job(scope: Message) -> tuple[Worker, LeasedJob]:
    """Return the runner and its job.

    Raises:
        ApiError: 401 or 429; 404, the job does not exist; 403, another runner has it; 409, it is not in execution.
    """
    worker = _authenticate(scope)
    uuid = parse_uuid(scope[PATH_PARAMS]["job"])
    job = _find_job(uuid) if uuid is not None else None
    if job is None:
        raise ApiError(404, "not_found", "job: There is no job with this UUID.")
    newest = newest_holding(job_ulid=job.job_ulid, worker=worker)
    if newest is None or newest.lease.fence != job.fence:
        raise ApiError(403, "forbidden", "job: Another runner has claimed this job, or none has.")
    if (status := job_status(job)) not in _IN_EXECUTION:
        raise ApiError(409, "conflict", f"job: Must be claimed or running; it is {status}.")
    return worker, leased_job(newest.lease, worker)


def _find_job(uuid: UUID) -> Job | None:
    return Job.objects.filter(job_ulid=public_id_of("rtj", uuid)).first()


def _subprotocol(scope: Message) -> str | None:
    """Return the subprotocol with the key of a runner of document 002, on the socket of one job only."""
    if "job" not in scope[PATH_PARAMS]:
        return None
    return next((name for name in scope.get("subprotocols", ()) if name.startswith(SUBPROTOCOL_PREFIX)), None)


def _latin1(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
