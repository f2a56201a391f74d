"""Writes the audit bundle of a tenant: from one snapshot of the database, in one pass, with a page of rows in memory.

The rows are written to temporary files without a name, because an archive names the size of a file before its content.
A process that is killed leaves nothing of them. The same snapshot gives the same bytes.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Final, Self

import orjson
from django.db.models import Q

from orchestrator.core.datetimes import format_timestamp
from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import OPERATOR, Place, StoredEvent, events_of_job
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.bundle_format import BundleFile
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replay_reads import replay_record
from orchestrator.evidence.signing_keys import sign
from runtime_jobs.events import canonical_event, canonical_result
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, JobEvent, OperatorEvent
from runtime_jobs.orchestration_status import STATUS_OF_STATE
from runtime_jobs.read_snapshot import read_snapshot
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.payload import canonical_payload

# Events of operators and of the server that throttle jobs, or stop that.
THROTTLE_EVENTS: Final = (
    *("limit.set", "limit.lifted", "quota.set"),
    *("breaker.opened", "breaker.half_opened", "breaker.closed", "breaker.reset"),
)
JOBS_PER_PAGE: Final = 100
EVENTS_PER_PAGE: Final = 500
_BLOCK_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class BundleScope:
    """The tenant and the time of a bundle.

    Attributes:
        tenant: The slug of the organization. A bundle never has rows of another one.
        since: Jobs that had ended before are left out.
        until: Jobs that were queued at this time or later are left out.
    """

    tenant: str
    since: datetime
    until: datetime


@dataclass(frozen=True)
class WrittenBundle:
    """The size and the SHA-256 of a bundle, the id of its key, and the number of lines of each data file."""

    size: int
    sha256: str
    key_id: str
    lines: dict[str, int]


def write_bundle(
    target: IO[bytes], scope: BundleScope, *, max_seconds: float, on_page: Callable[[], None] = lambda: None
) -> WrittenBundle:
    """Write the signed bundle of a tenant.

    Args:
        target: Where the bundle is written to, in blocks.
        scope: The tenant and the time.
        max_seconds: The longest time that the snapshot stays open.
        on_page: Is called after each page of rows. What it raises ends the writing.

    Raises:
        SnapshotTimeout: The snapshot was open for longer.
        SigningKeyError: This machine has no private key that may sign.
        OSError: The disk is full.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(_LineFile(name)) for name in form.DATA_FILES}
        with read_snapshot(max_seconds):
            _write_jobs(files, scope, on_page)
            _write_throttles(files[form.THROTTLES], scope, on_page)
            _write_replays(files[form.REPLAYS], scope, on_page)
        described = [file.described() for file in files.values()]
        manifest = form.manifest_of(
            tenant=scope.tenant,
            since=_timestamp(scope.since),
            until=_timestamp(scope.until),
            files=described,
        )
        envelope = sign(form.STATEMENT_TYPE, form.canonical(form.statement_of(manifest)))
        size, digest = 0, hashlib.sha256()
        for block in form.gzip_blocks(_archive(form.canonical(manifest), form.canonical(envelope), files, on_page)):
            target.write(block)
            digest.update(block)
            size += len(block)
    signer = envelope["signatures"][0]["keyid"]
    return WrittenBundle(size, digest.hexdigest(), signer, {file.name: file.lines for file in described})


# --- lines ------------------------------------------------------------------------------------------------------------


class _LineFile:
    """A data file that is being written."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed by `__exit__`
        self._digest = hashlib.sha256()
        self._size = self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, entry: bytes) -> None:
        begin = form.LINE_START + entry
        self._digest.update(begin)
        tail = form.line_tail(self._digest.copy().hexdigest().encode())
        self._digest.update(tail)
        self._file.write(begin + tail)
        self._size += len(begin) + len(tail)
        self._lines += 1

    def described(self) -> BundleFile:
        return BundleFile(self._name, self._size, self._digest.hexdigest(), self._lines)

    def blocks(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(_BLOCK_BYTES):
            yield block


def _write_jobs(files: dict[str, _LineFile], scope: BundleScope, page_ended: Callable[[], None]) -> None:
    """Write the jobs that lived in the time of the scope, in the order of their rows, with their whole histories."""
    jobs = Job.objects.of_organizations([scope.tenant]).filter(
        Q(finished_at=None) | Q(finished_at__gte=scope.since), created_at__lt=scope.until
    )
    after = 0
    while page := list(jobs.filter(pk__gt=after).order_by("pk")[:JOBS_PER_PAGE]):
        bound = _write_histories(files[form.HISTORY], page, page_ended)
        for job in page:
            files[form.JOBS].add(_job_entry(job, bound[job.job_ulid]))
        after = page[-1].pk
        page_ended()


def _write_histories(file: _LineFile, jobs: list[Job], page_ended: Callable[[], None]) -> dict[str, dict[str, Any]]:
    """Write the histories of some jobs. Return the details of the first and the last event of each, joined."""
    attempts = [(job.job_ulid, number) for number, job in enumerate(jobs, 1)]
    numbers, after = dict(attempts), (0, 0)
    bound: dict[str, dict[str, Any]] = {ulid: {} for ulid, _ in attempts}
    while events := events_of_job(attempts, after=after, rows=EVENTS_PER_PAGE):
        rows = JobEvent.objects.in_bulk([event.place.id for event in events])
        for event in events:
            row = rows[event.place.id]
            file.add(b'{"row":' + canonical_event(row) + b',"envelope":' + _dumped(envelope_of(event)) + b"}")
            digests = form.RESULT_DIGESTS if row.seq > 1 else (*form.INPUT_DIGESTS, *form.RESULT_DIGESTS)
            bound[row.job_id] |= {name: row.payload_json[name] for name in digests if name in row.payload_json}
        last = rows[events[-1].place.id]
        after = (numbers[last.job_id], last.seq)
        page_ended()
    return bound


def _job_entry(job: Job, bound: dict[str, Any]) -> bytes:
    """Return an entry of `jobs.jsonl`. Payload and result are the bytes whose digests the history has."""
    has_payload = JOB_TYPES[job.job_type].has_payload
    payload = canonical_payload(job.spec["payload"]) if has_payload else b"null"
    result = canonical_result(job) if job.is_final else b"null"
    described = {
        "ulid": job.job_ulid,
        "jobId": str(uuid_of(job.root_job_ulid)),
        "attempt": job.attempt,
        "jobType": job.job_type,
        "tenant": job.org_slug,
        "project": job.project_slug,
        "status": str(STATUS_OF_STATE[job.state]),
        "priority": job.priority,
        "correlationId": job.correlation_id,
        "requestedBy": job.trigger_actor,
        "request": None if has_payload else JOB_TYPES[job.job_type].serialize(job),
        "cursors": job.spec["cursors"] if has_payload else {},
        "timeoutSeconds": job.timeout_seconds,
        "replayOf": None if job.replay_of_job_ulid is None else str(uuid_of(job.replay_of_job_ulid)),
        "inputDigest": form.first_of(bound, form.INPUT_DIGESTS),
        "resultDigest": form.first_of(bound, form.RESULT_DIGESTS),
        "events": job.event_seq,
        "head": job.event_head,
        "createdAt": format_timestamp(job.created_at),
        "startedAt": format_timestamp(job.started_at),
        "completedAt": format_timestamp(job.finished_at),
    }
    return b'{"payload":' + payload + b',"result":' + result + b',"job":' + _dumped(described) + b"}"


def _write_replays(file: _LineFile, scope: BundleScope, page_ended: Callable[[], None]) -> None:
    """Write the replays that were requested or decided in the time, with the manifests from which a reader decides."""
    replays = Replay.objects.filter(
        Q(decided_at=None) | Q(decided_at__gte=scope.since), org_slug=scope.tenant, created_at__lt=scope.until
    )
    after = 0
    while page := list(replays.filter(pk__gt=after).order_by("pk")[:JOBS_PER_PAGE]):
        for row in page:
            file.add(_dumped(replay_record(row)))
        after = page[-1].pk
        page_ended()


def _write_throttles(file: _LineFile, scope: BundleScope, page_ended: Callable[[], None]) -> None:
    events = OperatorEvent.objects.filter(
        org_slug=scope.tenant,
        action__in=THROTTLE_EVENTS,
        created_at__gte=scope.since,
        created_at__lt=scope.until,
    )
    after = 0
    while page := list(events.filter(pk__gt=after).order_by("pk")[:EVENTS_PER_PAGE]):
        for event in page:
            file.add(_dumped({"envelope": envelope_of(_stored(event))}))
        after = page[-1].pk
        page_ended()


def _stored(event: OperatorEvent) -> StoredEvent:
    """Return an event of an operator as the feeds read it."""
    return StoredEvent(
        place=Place(0, OPERATOR, event.pk),
        event_id=event.event_ulid,
        event_type=event.action,
        created_at=event.created_at,
        org_slug=event.org_slug,
        job_type=event.job_type,
        correlation_id=None,
        actor=event.actor,
        details={"target": event.target, "before": event.before, "after": event.after, "reason": event.reason},
    )


def _dumped(value: Any) -> bytes:
    """Return JSON with sorted names, in one line."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # a whole number of more than 64 bits
        return form.canonical(value)


def _timestamp(time_: datetime) -> str:
    return str(format_timestamp(time_))


# --- the archive ------------------------------------------------------------------------------------------------------


def _archive(
    manifest: bytes, envelope: bytes, files: dict[str, _LineFile], on_page: Callable[[], None]
) -> Iterator[bytes]:
    """Yield the archive: the manifest and its signature first, so that a reader trusts nothing before it."""
    for name, content in ((form.MANIFEST, manifest), (form.SIGNATURE, envelope)):
        yield form.tar_header(name, len(content)) + content + form.tar_padding(len(content))
    for name, file in files.items():
        size = file.described().size
        yield form.tar_header(name, size)
        for number, block in enumerate(file.blocks()):
            yield block
            if number % 64 == 0:
                on_page()
        yield form.tar_padding(size)
    yield form.END_OF_ARCHIVE
