"""Two scheduler processes, as `manage.py runclock` starts them: the stand-by takes over whatever happens to the leader."""

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from django.db import connection

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.models import ClockBeat
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from tests.factories import claimed, submitted
from tests.live_server import Server, eventually, serving
from tests.orchestrator.maintenance.unix_proxy import UnixProxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
TAKEOVER_LIMIT_SECONDS = 10.0
# A takeover makes fewer trips to PostgreSQL than this. The machine's load lengthens each of them, as it does `/readyz`.
TAKEOVER_TRIPS = 20


class SchedulerProcess:
    """One process of the command; what it logs goes to a file."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._log = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        environment = {**os.environ, "STATE_DIR": str(folder / "state"), "DATABASE_URL": database_url}
        environment.pop("DATABASE_URL_FILE", None)
        with self._log.open("ab") as log:
            command = [sys.executable, str(BASE_DIR / "manage.py"), "runclock"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def leads(self) -> bool:
        beat = ClockBeat.objects.order_by("-beat_at").first()
        return beat is not None and beat.leader.endswith(f":{self.process.pid}")

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
        return self.process.wait()


Start = Callable[..., SchedulerProcess]


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    started: list[SchedulerProcess] = []

    def begin(url: str = database_url) -> SchedulerProcess:
        started.append(SchedulerProcess(url, tmp_path))
        return started[-1]

    yield begin
    for process in started:
        process.stop()


@pytest.fixture(scope="module")
def web(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("web"), DATABASE_URL=database_url, DATABASE_URL_FILE="") as server:
        yield server


class Readiness:
    """Asks `/readyz` again and again while in the block, and keeps every answer that is not 200."""

    def __init__(self, server: Server) -> None:
        self._url = f"{server.url}/readyz"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.asked = 0
        self.seconds: list[float] = []
        self.unready: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _ask(self) -> None:
        while not self._over.wait(0.1):
            began = time.monotonic()
            answer = requests.get(self._url, timeout=30)
            self.asked += 1
            self.seconds.append(time.monotonic() - began)
            if answer.status_code != 200:
                self.unready.append(f"{answer.status_code} {answer.text}")


def leader_and_standby(start: Start, leader_url: str | None = None) -> tuple[SchedulerProcess, SchedulerProcess]:
    leader = start(leader_url) if leader_url else start()
    eventually(lambda: leader.leads, 60)
    standby = start()
    eventually(lambda: "is running" in standby.log(), 60)
    return leader, standby


def silent_job() -> Lease:
    """A job whose worker has fallen silent: only a scheduler that works ends its lease."""
    submitted()
    lease = claimed().lease
    Lease.objects.filter(pk=lease.pk).update(expires_at=database_now())
    return lease


def assert_takes_over(standby: SchedulerProcess, web: Server, fault: Callable[[], object]) -> None:
    with Readiness(web) as readiness:
        eventually(lambda: readiness.asked > 0 and "is running" in standby.log(), 60)
        fault()
        began = time.monotonic()
        lease = silent_job()
        eventually(lambda: standby.leads, 60)
        eventually(lambda: not Lease.objects.open().filter(pk=lease.pk).exists(), 60)
        seconds = time.monotonic() - began
    trip = statistics.median(readiness.seconds)
    assert seconds < TAKEOVER_LIMIT_SECONDS + TAKEOVER_TRIPS * trip, f"{seconds:.1f} s ({trip:.3f})\n{standby.log()}"
    assert readiness.unready == []
    sys.stderr.write(f"\ntakeover after {seconds:.1f} s, /readyz asked {readiness.asked} times")


def test_a_standby_takes_over_from_a_leader_that_is_stopped(start, web):
    leader, standby = leader_and_standby(start)
    assert_takes_over(standby, web, lambda: leader.process.send_signal(signal.SIGSTOP))
    leader.process.send_signal(signal.SIGCONT)
    eventually(lambda: "lost" in leader.log() or "taken over" in leader.log(), 30)
    assert standby.leads, "a leader that wakes up finds its session ended and stands by"
    assert leader.process.poll() is None


def test_a_standby_takes_over_from_a_leader_whose_connection_is_cut(start, web, database_url):
    server = Path(parse_qs(urlsplit(database_url).query)["host"][0])
    folder = Path(tempfile.mkdtemp(prefix="rto-cut-"))  # a socket's path is short
    proxy = UnixProxy(folder, server)
    try:
        leader, standby = leader_and_standby(start, urlsplit(database_url)._replace(query=f"host={folder}").geturl())
        assert_takes_over(standby, web, proxy.cut)
        proxy.restore()
        eventually(lambda: "lost" in leader.log() or "taken over" in leader.log(), 30)
        assert standby.leads
    finally:
        proxy.close()
        shutil.rmtree(folder)


def test_a_standby_takes_over_from_a_leader_whose_task_fails_at_every_round(start, web, database_url):
    """The leader's session has a value that the aging of queues cannot read; all its other tasks succeed."""
    submitted()
    began = time.monotonic()
    query = f"{urlsplit(database_url).query}&options=-c%20orchestrator.aging_seconds%3Dnonsense"
    leader = start(urlsplit(database_url)._replace(query=query).geturl())
    eventually(lambda: leader.leads, 60)
    assert_takes_over(start(), web, lambda: None)
    assert "apply_aging" in leader.log()
    assert time.monotonic() - began < 60


def test_a_leader_that_is_killed_or_asked_to_end_is_followed_at_once(start):
    first, second = leader_and_standby(start)
    first.process.kill()
    began = time.monotonic()
    eventually(lambda: second.leads, 60)
    assert time.monotonic() - began < 5, "its session has ended: there is no need to wait for an old beat"
    third = start()
    eventually(lambda: "is running" in third.log(), 60)
    assert second.stop() == 0
    began = time.monotonic()
    eventually(lambda: third.leads, 60)
    assert time.monotonic() - began < 5
    assert Job.objects.count() == 0


def test_what_a_stopped_leader_had_not_committed_is_rolled_back_and_holds_no_lock(start):
    """The leader is stopped inside a transaction that has locked a job."""
    leader, standby = leader_and_standby(start)
    lease = silent_job_under_lock(leader)
    session = ClockBeat.objects.get().backend_pid
    eventually(lambda: standby.leads, 60)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [session])
        assert cursor.fetchone() == (0,), "the stand-by ends the session before it leads"
    eventually(lambda: not Lease.objects.open().filter(pk=lease.pk).exists(), 30)
    leader.process.send_signal(signal.SIGCONT)
    eventually(lambda: "lost" in leader.log() or "taken over" in leader.log(), 30)
    assert Job.objects.filter(root_job_ulid=lease.job_id).count() == 2, "failed once, and retried once"


def silent_job_under_lock(leader: SchedulerProcess) -> Lease:
    """Let the leader wait for this session in the middle of its operation, stop it there, and let the lock go."""
    from django.db import transaction  # noqa: PLC0415 - only here

    lease = silent_job()
    with transaction.atomic():
        # It locks the job, then it adds an event: that waits here, with the job's lock in its hands.
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE runtime_job_events IN EXCLUSIVE MODE")
        eventually(leader_waits, 30)
        leader.process.send_signal(signal.SIGSTOP)
    return lease


def leader_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'orchestrator-clock'"
            " AND wait_event_type = 'Lock')"
        )
        return bool(cursor.fetchone()[0])
