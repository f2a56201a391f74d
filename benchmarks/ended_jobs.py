"""Creates jobs that have ended, with complete histories: one by the operations, the others as its copies.

Each copy has ids of its own, so that each of its events has another hash. The database computes it from the canonical
form of the original's event.
"""

from __future__ import annotations

from django.db import connection, transaction

from benchmarks import tenants
from leases.models import Lease
from orchestrator.services import heartbeat, job_end
from orchestrator.services.submission import submit
from runtime_jobs.events import canonical_event
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.payload import SCAN, PayloadSpec
from runtime_jobs.states import JobState
from tests.factories import ALICE, TIMINGS, WorkerFactory, claimed, submission

PAYLOAD = {"imageRef": "registry.example/web:1.27.3", "options": {"severity": "high", "ignoreUnfixed": True}}
PHASES = (JobState.STARTING, JobState.EXECUTING, JobState.UPLOADING)

# Of the n-th job, an event has the id of the job and its place in the history, in digits.
_COPIES = """
CREATE TEMPORARY TABLE copies ON COMMIT DROP AS
SELECT id, 'rtj_' || lpad(id::text, 26, '0') AS ulid, '' AS head
  FROM (SELECT nextval('runtime_jobs_id_seq') AS id FROM generate_series(1, %s)) numbers"""
_COPY_EVENT = """
WITH named AS (
    SELECT id, ulid, head, 'evt_' || lpad((id * 100 + %(seq)s)::text, 26, '0') AS event_ulid FROM copies
), hashed AS MATERIALIZED (
    SELECT *, encode(sha256(convert_to(
               replace(replace(replace(%(canonical)s, %(job)s, ulid), %(event)s, event_ulid), %(previous)s, head),
               'UTF8')), 'hex') AS hash
      FROM named
), inserted AS (
    INSERT INTO runtime_job_events ({columns})
    SELECT {values} FROM runtime_job_events old, hashed new WHERE old.id = %(id)s ORDER BY new.id
)
UPDATE copies SET head = hashed.hash FROM hashed WHERE hashed.id = copies.id"""
_COPY_ROW = """
INSERT INTO {table} ({columns}) SELECT {values} FROM {table} old, copies new WHERE old.id = %s ORDER BY new.id"""


def ended_jobs(org: str, pool: str, events: int) -> int:
    """Create jobs of an organization that have ended, with so many events in all or a few more.

    Args:
        org: The slug of the organization.
        pool: The slug of a pool, which exists.
        events: The number of events.

    Returns:
        The number of events.
    """
    original, lease = _ended_job(org, pool)
    history = list(JobEvent.objects.of(original.job_ulid))
    jobs = -(-events // len(history))
    _copy(original, lease, history, jobs - 1)
    return jobs * len(history)


def _ended_job(org: str, pool: str) -> tuple[Job, Lease]:
    tenants.number_jobs()
    project = tenants.project(org, pool)
    given = submission(project, PayloadSpec(SCAN, PAYLOAD, 300, {"advisories": "cursor-1"}))
    submit(given, policy=JOB_TYPES[SCAN].policy(**TIMINGS), default_pool=pool, actor=ALICE)
    lease = claimed(WorkerFactory(pool__slug=pool), job_types=(SCAN,)).lease
    for phase in PHASES:
        heartbeat.report(lease_ulid=lease.lease_ulid, worker=lease.worker, phase=phase)
    result = {"outputs": {"critical": 0, "high": 3, "medium": 12}}
    job = job_end.complete(lease_ulid=lease.lease_ulid, worker=lease.worker, exit_code=0, result=result)
    return Job.objects.get(pk=job.pk), lease


def _copy(original: Job, lease: Lease, history: list[JobEvent], times: int) -> None:
    of_event = {
        "id": "nextval('runtime_job_events_id_seq')",
        "job_ulid": "new.ulid",
        "event_ulid": "new.event_ulid",
        "prev_hash": "new.head",
        "hash": "new.hash",
    }
    of_job = {"id": "new.id", "job_ulid": "new.ulid", "root_job_ulid": "new.ulid", "event_head": "new.head"}
    of_lease = {
        "id": "nextval('runtime_worker_leases_id_seq')",
        "lease_ulid": "'rtl' || substr(new.ulid, 4)",
        "job_ulid": "new.ulid",
    }
    copy_event = _COPY_EVENT.format(columns=tenants.columns(JobEvent), values=tenants.columns(JobEvent, of_event))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_COPIES, [times])
        for event in history:
            values = {
                "id": event.pk,
                "seq": event.seq,
                "canonical": canonical_event(event).decode(),
                "job": event.job_id,
                "event": event.event_ulid,
                "previous": event.prev_hash,
            }
            cursor.execute(copy_event, values)
        for row, changed in ((original, of_job), (lease, of_lease)):
            table, names = row._meta.db_table, tenants.columns(type(row))  # noqa: SLF001 Django's name
            copy_row = _COPY_ROW.format(table=table, columns=names, values=tenants.columns(type(row), changed))
            cursor.execute(copy_row, [row.pk])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE runtime_jobs, runtime_job_events, runtime_worker_leases")
