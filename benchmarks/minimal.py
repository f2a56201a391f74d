"""Provides the least that a queue with leases and a history does in PostgreSQL: the measure of our SQL.

Three narrow tables, each with its primary key; one more index, of the jobs that wait. No foreign keys, no checks, no
triggers, no limits, tenants, tokens, idempotency or hashes. pgbench sends prepared statements.

- `CLAIM`: one statement, one transaction. It locks the first waiting job that is not locked, updates the job, inserts
  a lease and inserts an event.
- `LIFECYCLE`: four transactions of one statement each: insert a job with its event; claim as above; heartbeat (update
  the lease, insert an event); complete (update job and lease, insert an event). A pause follows each.
"""

from __future__ import annotations

import time

from benchmarks import pgbench, processors
from benchmarks.environment import Cluster

NAME = "bench_minimal"
SCHEMA = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'queued',
    priority integer NOT NULL DEFAULT 0,
    fence integer NOT NULL DEFAULT 0,
    spec jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX waiting ON jobs (priority DESC, id) WHERE state = 'queued';
CREATE TABLE leases (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    worker_id bigint NOT NULL,
    fence integer NOT NULL,
    state text NOT NULL DEFAULT 'active',
    leased_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL DEFAULT now() + interval '120 s'
);
CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
"""
SPEC = '{"name": "unit", "steps": ["true"], "timeout_seconds": 300}'
FILL = f"INSERT INTO jobs (spec) SELECT '{SPEC}' FROM generate_series(1, %s)"
_CLAIMED = """WITH picked AS (
    SELECT id FROM jobs WHERE state = 'queued' ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
), job AS (
    UPDATE jobs SET state = 'leased', fence = fence + 1 FROM picked WHERE jobs.id = picked.id
    RETURNING jobs.id, jobs.fence
), lease AS (
    INSERT INTO leases (job_id, worker_id, fence) SELECT id, :worker, fence FROM job RETURNING id, job_id
), event AS (
    INSERT INTO events (job_id, event_type) SELECT id, 'leased' FROM job
)"""
CLAIM = ["\\set worker random(1, 256)", f"{_CLAIMED} SELECT id, job_id FROM lease;"]
# A colon starts a variable of pgbench, so the JSON has its colons as an escape.
_SUBMIT = """WITH job AS (INSERT INTO jobs (spec) VALUES (E'{}') RETURNING id)
INSERT INTO events (job_id, event_type) SELECT id, 'queued' FROM job;""".format(SPEC.replace(":", "\\x3a"))
_HEARTBEAT = """WITH lease AS (
    UPDATE leases SET expires_at = now() + interval '120 s' WHERE id = :lease AND state = 'active' RETURNING job_id
) INSERT INTO events (job_id, event_type) SELECT job_id, 'heartbeat' FROM lease;"""
_COMPLETE = """WITH lease AS (
    UPDATE leases SET state = 'completed' WHERE id = :lease AND state = 'active' RETURNING job_id
), job AS (
    UPDATE jobs SET state = 'succeeded', finished_at = now() FROM lease WHERE jobs.id = lease.job_id RETURNING jobs.id
) INSERT INTO events (job_id, event_type) SELECT id, 'succeeded' FROM job;"""
_TAKE = f"{_CLAIMED} SELECT id AS lease, job_id AS job FROM lease\n\\gset"
# A backend that rests between two statements begins the next with colder caches. Ours rests while the server works.
_PAUSE = "\\sleep 1 ms"
LIFECYCLE = ["\\set worker random(1, 256)", _SUBMIT, _PAUSE, _TAKE, _PAUSE, _HEARTBEAT, _PAUSE, _COMPLETE, _PAUSE]


class MinimalQueueEmpty(Exception):
    """Reports that claims found nothing to do, so that their rate means nothing."""


def create(cluster: Cluster) -> None:
    """Create the database anew."""
    cluster.fresh(NAME)
    with cluster.superuser(NAME) as connection:
        connection.execute("SET ROLE orchestrator")
        connection.execute(SCHEMA)


def fill(cluster: Cluster, waiting: int) -> None:
    """Let so many jobs wait, with those that wait already."""
    with cluster.superuser(NAME) as connection:
        there = _number(cluster, "SELECT count(*) FROM jobs WHERE state = 'queued'")
        connection.execute(FILL, [max(0, waiting - there)])
        connection.execute("VACUUM ANALYZE")


def claims(cluster: Cluster, *, clients: int, seconds: float) -> float:
    """Return claims per second, each a transaction.

    Raises:
        MinimalQueueEmpty: Fewer jobs were claimed than statements sent.
    """
    before = _number(cluster, "SELECT count(*) FROM leases")
    result = pgbench.run(cluster, CLAIM, name="minimal-claim", database=NAME, clients=clients, seconds=seconds)
    claimed = _number(cluster, "SELECT count(*) FROM leases") - before
    if claimed < result.transactions:
        raise MinimalQueueEmpty(f"{claimed} of {result.transactions} claims found a job")
    return result.per_second


def lifecycle_ms(cluster: Cluster, *, seconds: float) -> float:
    """Return the milliseconds of processor time that a lifecycle of one client takes of its PostgreSQL backend."""
    longer = seconds + 2
    with pgbench.running(cluster, LIFECYCLE, name="minimal-lifecycle", database=NAME, clients=1, seconds=longer) as pid:
        time.sleep(0.5)  # its statements are prepared, and its catalog is cached
        before, began = _number(cluster, "SELECT last_value FROM jobs_id_seq"), processors.seconds_of(pid)
        time.sleep(seconds)
        spent = processors.seconds_of(pid) - began
        ended = _number(cluster, "SELECT last_value FROM jobs_id_seq") - before
    return spent / ended * 1000


def _number(cluster: Cluster, query: str) -> int:
    with cluster.superuser(NAME) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
    return int(row[0]) if row else 0
