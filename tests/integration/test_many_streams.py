"""Many streams of events on one process: no connection for each, each event once, also over a lost database.

On a cluster of this module's own, which is killed under the streams. `PROOF_STREAMS` has the number of streams: a thousand
in `make proof`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import aiohttp
import psycopg
import pytest
import requests

from config import paths
from tests.chaos.processes import Postgres
from tests.live_server import eventually, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Pools that are full from the beginning: requests of a burst then need no further connection, and a stream never does.
SETTINGS = {"DATABASE_POOL_MIN": "4", "DATABASE_POOL_MAX": "4", "STREAM_READERS": "1", "STREAM_AUTH_SECONDS": "5"}

TENANTS = 10
STREAMS_OF_EACH = int(os.environ.get("PROOF_STREAMS", "150")) // TENANTS
JOBS, EVENTS_OF_EACH = 3, 10  # of each tenant, by one writer
BUILD = """
import json, sys, django
django.setup()
from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, api_token
made = [OrganizationFactory(slug=f"tenant-{number}") for number in range(int(sys.argv[1]))]
print(json.dumps({one.slug: api_token(one, (Scope.ORCH_READ,)) for one in made}))
"""
EVENT = """
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
       org_slug, job_type, correlation_id, fence, prev_hash, hash)
VALUES ('evt_' || lpad(nextval('made_up_events')::text, 26, '0'), %(job)s, %(seq)s, 'job.prioritized', 'core', 'test',
       '{}', clock_timestamp(), %(tenant)s, 'scan', '', 0, '', %(hash)s)"""


def job_of(tenant: str, number: int, turn: int) -> str:
    return f"rtj_0{tenant[-1]}{number}{turn:023}"


class Installation(Postgres):
    """A cluster with ten tenants, and a token of each."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="rto-streams-")))
        self.environment = os.environ | {
            "DATABASE_URL": self.url,
            "STATE_DIR": str(self.state),
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }
        build = [sys.executable, "-c", BUILD, str(TENANTS)]
        built = subprocess.run(
            build, cwd=paths.BASE_DIR, env=self.environment, capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stderr
        self.tokens: dict[str, str] = json.loads(built.stdout.splitlines()[-1])
        self.write("CREATE SEQUENCE made_up_events")
        self.round = 0

    def write(self, statement: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement)

    def connections(self) -> int:
        """The connections of the server."""
        question = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'orchestrator-%'"
        with psycopg.connect(self.url) as connection:
            return int(connection.execute(question).fetchone()[0])

    def write_events(self, tenants: list[str]) -> None:
        """Write events of each tenant, by writers whose transactions overlap."""
        self.round += 1
        with ThreadPoolExecutor(len(tenants)) as writers:
            list(writers.map(self._write_events_of, tenants))

    def _write_events_of(self, tenant: str) -> None:
        with psycopg.connect(self.url) as connection:
            for seq in range(1, EVENTS_OF_EACH + 1):
                for number in range(JOBS):
                    job = job_of(tenant, number, self.round)
                    values = {"job": job, "seq": seq, "tenant": tenant, "hash": f"{tenant}/{job}/{seq}"}
                    connection.execute(EVENT, values)
                connection.commit()


class Clients:
    """Streams in a thread of their own. Each records the hash of every event, and how its response ended."""

    def __init__(self, url: str) -> None:
        self.url, self.begun, self.ended = url, 0, 0
        self.received: dict[str, list[list[tuple[str, str]]]] = defaultdict(list)
        self.gaps: list[object] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._session = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(60)
        self._tasks: list[Future[None]] = []

    @staticmethod
    async def _open() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))

    def begin(self, tenant: str, token: str) -> None:
        received: list[tuple[str, str]] = []
        self.received[tenant].append(received)
        self._tasks.append(asyncio.run_coroutine_threadsafe(self._follow(token, received), self._loop))

    async def _follow(self, token: str, received: list[tuple[str, str]]) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            async with self._session.get(f"{self.url}/api/dashboard/events", headers=headers) as response:
                if response.status == 200:
                    await self._read(response, received)
                    return
                assert response.status == 503, await response.text()  # many at once: each is repeated
                await asyncio.sleep(random.uniform(0.1, 1.0))

    async def _read(self, response: aiohttp.ClientResponse, received: list[tuple[str, str]]) -> None:
        name = "message"
        async for line in response.content:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                self._record(name, json.loads(value), received)
                name = "message"
        self.ended += 1

    def _record(self, name: str, content: dict, received: list[tuple[str, str]]) -> None:
        if name == "snapshot":
            self.begun += 1
        elif name == "gap":
            self.gaps.append(content)
        else:
            received.append((content["tenant"], content["integrity"]["hash"]))

    @property
    def number(self) -> int:
        return sum(len(received) for streams in self.received.values() for received in streams)

    def close(self) -> None:
        failed = [error for task in self._tasks if task.done() and (error := task.exception()) is not None]
        for task in self._tasks:
            task.cancel()
        asyncio.run_coroutine_threadsafe(self._session.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        assert failed == []


@pytest.fixture
def installation():
    made = Installation()
    yield made
    made.leave()
    shutil.rmtree(made.state, ignore_errors=True)


def fill_pool(server, token):
    """Send as many requests at once as the process has threads, so that its pool is as large as it gets."""

    def read(_):
        headers = {"Authorization": f"Bearer {token}"}
        return requests.get(f"{server.url}/api/events", headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(40) as callers:
        assert set(callers.map(read, range(200))) <= {200, 503}


def threads_of(server):
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def expected_of(installation, tenant):
    """The events of a tenant, by job, in the order of the numbers."""
    turns = range(1, installation.round + 1)
    jobs = [job_of(tenant, number, turn) for turn in turns for number in range(JOBS)]
    return {job: [f"{tenant}/{job}/{seq}" for seq in range(1, EVENTS_OF_EACH + 1)] for job in jobs}


def test_many_streams_on_one_process(installation, tmp_path):
    tenants = list(installation.tokens)
    of_each_round = JOBS * EVENTS_OF_EACH * STREAMS_OF_EACH * TENANTS
    with serving(tmp_path, DATABASE_URL=installation.url, **SETTINGS) as server:
        clients = Clients(server.url)
        try:
            clients.begin(tenants[0], installation.tokens[tenants[0]])
            eventually(lambda: clients.begun == 1)
            fill_pool(server, installation.tokens[tenants[0]])
            # The pool opens them in the background.
            eventually(lambda: installation.connections() == int(SETTINGS["DATABASE_POOL_MAX"]))
            with_one = installation.connections()
            threads_with_one = threads_of(server)

            for number in range(1, TENANTS * STREAMS_OF_EACH):
                tenant = tenants[number % TENANTS]
                clients.begin(tenant, installation.tokens[tenant])
            eventually(lambda: clients.begun == TENANTS * STREAMS_OF_EACH, 300)
            installation.write_events(tenants)
            eventually(lambda: clients.number == of_each_round, 120)
            assert installation.connections() <= with_one
            assert threads_of(server) < threads_with_one + 20  # those of the pools, and none for a stream

            assert installation.send_signal(signal.SIGKILL)
            eventually(lambda: installation.ask("SELECT 1") == (1,), 120)
            installation.write_events(tenants)
            eventually(lambda: clients.number == 2 * of_each_round, 120)
            assert (clients.ended, clients.gaps) == (0, [])
            for tenant, streams in clients.received.items():
                expected = expected_of(installation, tenant)
                for received in streams:
                    by_job = defaultdict(list)
                    for owner, name in received:
                        assert owner == tenant
                        by_job[name.split("/")[1]].append(name)
                    assert by_job == expected, "each event once, and each job in order"
            eventually(lambda: installation.connections() <= with_one)
        finally:
            clients.close()
        assert " ERROR " not in server.log()
