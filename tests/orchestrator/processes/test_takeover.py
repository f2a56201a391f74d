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

import psycopg
import pytest
import requests
from django.db import connection

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.core.clock_beat import ClockBeat
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from tests.factories import claimed, submitted
from tests.live_server import Server, eventually, serving
from tests.orchestrator.processes.unix_proxy import UnixProxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
TAKEOVER_LIMIT_SECONDS = 10.0
# A takeover makes fewer trips to PostgreSQL than this. The machine's load lengthens each of them, as it does `/readyz`.
TAKEOVER_TRIPS = 20


class SchedulerProcess:
    """One process of the command, with a proxy before its database; what it logs goes to a file."""

    def __init__(self, database_url: str, folder: Path, options: str = "") -> None:
        self._log = Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        self._earlier = 0
        url = urlsplit(database_url)
        self._sockets = Path(tempfile.mkdtemp(prefix="rto-cut-"))  # a socket's path is short
        self.proxy = UnixProxy(self._sockets, Path(parse_qs(url.query)["host"][0]))
        own = url._replace(query=f"host={self._sockets}{options}").geturl()
        environment = {**os.environ, "STATE_DIR": str(folder / "state"), "DATABASE_URL": own}
        environment.pop("DATABASE_URL_FILE", None)
        with self._log.open("ab") as log:
            command = [sys.executable, str(BASE_DIR / "manage.py"), "runclock"]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    @property
    def leads(self) -> bool:
        beat = ClockBeat.objects.order_by("-beat_at").first()
        return beat is not None and beat.leader.endswith(f":{self.process.pid}")

    @property
    def is_running(self) -> bool:
        return "is running" in self._log.read_text()

    def forget_log(self) -> None:
        self._earlier = len(self._log.read_text())

    def log(self) -> str:
        """Return what it has written since its log was forgotten."""
        return self._log.read_text()[self._earlier :]

    @property
    def was_replaced(self) -> bool:
        """Whether it knows that another one leads. That its session has ended is logged before, and is not enough."""
        return "another scheduler has taken over" in self.log()

    def resume(self) -> None:
        self.proxy.restore()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        self.resume()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
            self.process.kill()
        self.proxy.close()
        shutil.rmtree(self._sockets, ignore_errors=True)
        return self.process.wait()


class Schedulers:
    """The processes of this module. One that a test leaves alive is the leader or the stand-by of the next test."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._database_url, self._folder = database_url, folder
        self._started: list[SchedulerProcess] = []

    def start(self, options: str = "") -> SchedulerProcess:
        self._started.append(SchedulerProcess(self._database_url, self._folder, options))
        return self._started[-1]

    def resume_all(self) -> None:
        for process in self._started:
            process.resume()

    def stop_all(self) -> None:
        for process in self._started:
            process.stop()
        self._started.clear()

    def leader_and_standby(self) -> tuple[SchedulerProcess, SchedulerProcess]:
        """Return two live processes. A test begins with an empty database: the first one that writes its row leads."""
        alive = [process for process in self._started if process.process.poll() is None]
        alive += [self.start() for _ in range(2 - len(alive))]
        eventually(lambda: all(process.is_running for process in alive), 60)
        leader = eventually(lambda: next((process for process in alive if process.leads), None), 60)
        (standby,) = [process for process in alive if process is not leader]
        for process in alive:
            process.forget_log()
        return leader, standby


@pytest.fixture(scope="module")
def schedulers(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Schedulers]:
    made = Schedulers(database_url, tmp_path_factory.mktemp("schedulers"))
    yield made
    made.stop_all()


@pytest.fixture(autouse=True)
def _resumed(schedulers: Schedulers) -> Iterator[None]:
    """A test that fails leaves no stopped process to the next one, which would wait for it."""
    yield
    schedulers.resume_all()


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
        while not self._over.wait(0.2):
            began = time.monotonic()
            answer = requests.get(self._url, timeout=30)
            self.asked += 1
            self.seconds.append(time.monotonic() - began)
            if answer.status_code != 200:
                self.unready.append(f"{answer.status_code} {answer.text}")


def leased_job() -> Lease:
    submitted()
    return claimed().lease


def fall_silent(lease: Lease) -> None:
    """Let the time of the lease end: only a scheduler that works ends the lease itself."""
    Lease.objects.filter(pk=lease.pk).update(expires_at=database_now())


def assert_takes_over(standby: SchedulerProcess, web: Server, fault: Callable[[], object]) -> None:
    with Readiness(web) as readiness:
        eventually(lambda: readiness.asked > 0 and standby.is_running, 60)
        fault()
        began = time.monotonic()
        lease = leased_job()
        fall_silent(lease)
        eventually(lambda: standby.leads, 60)
        eventually(lambda: not Lease.objects.open().filter(pk=lease.pk).exists(), 60)
        seconds = time.monotonic() - began
    trip = statistics.median(readiness.seconds)
    assert seconds < TAKEOVER_LIMIT_SECONDS + TAKEOVER_TRIPS * trip, f"{seconds:.1f} s ({trip:.3f})\n{standby.log()}"
    assert readiness.unready == []
    sys.stderr.write(f"\ntakeover after {seconds:.1f} s, /readyz asked {readiness.asked} times")


def test_a_standby_takes_over_from_a_leader_whose_task_fails_at_every_round(schedulers, web):
    """The leader's session has a value that the aging of queues cannot read; all its other tasks succeed."""
    schedulers.stop_all()
    submitted()
    began = time.monotonic()
    leader = schedulers.start("&options=-c%20orchestrator.aging_seconds%3Dnonsense")
    eventually(lambda: leader.leads, 60)
    assert_takes_over(schedulers.start(), web, lambda: None)
    assert "apply_aging" in leader.log()
    assert time.monotonic() - began < 60
    leader.stop()


def test_a_standby_takes_over_from_a_leader_that_is_stopped(schedulers, web):
    leader, standby = schedulers.leader_and_standby()
    assert_takes_over(standby, web, lambda: leader.process.send_signal(signal.SIGSTOP))
    leader.process.send_signal(signal.SIGCONT)
    eventually(lambda: leader.was_replaced, 30)
    assert standby.leads, "a leader that wakes up finds its session ended and stands by"
    assert leader.process.poll() is None


def test_a_standby_takes_over_from_a_leader_whose_connection_is_cut(schedulers, web):
    leader, standby = schedulers.leader_and_standby()
    assert_takes_over(standby, web, leader.proxy.cut)
    leader.proxy.restore()
    eventually(lambda: leader.was_replaced, 30)
    assert standby.leads


def test_what_a_stopped_leader_had_not_committed_is_rolled_back_and_holds_no_lock(schedulers, database_url):
    """The leader is stopped inside a transaction that has locked a job."""
    leader, standby = schedulers.leader_and_standby()
    session = ClockBeat.objects.get().backend_pid
    lease = leased_job()
    stop_inside_an_operation(leader, lease, database_url)
    eventually(lambda: standby.leads, 60)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [session])
        assert cursor.fetchone() == (0,), "the stand-by ends the session before it leads"
    eventually(lambda: not Lease.objects.open().filter(pk=lease.pk).exists(), 30)
    leader.process.send_signal(signal.SIGCONT)
    eventually(lambda: leader.was_replaced, 30)
    assert Job.objects.filter(root_job_ulid=lease.job_id).count() == 2, "failed once, and retried once"


def stop_inside_an_operation(leader: SchedulerProcess, lease: Lease, database_url: str) -> None:
    """Let the leader wait for another session while it ends this lease, stop it there, and free the lock."""
    with psycopg.connect(database_url) as holder:
        # The leader locks the job, then it adds an event: it waits there, and the job stays locked.
        holder.execute("LOCK TABLE runtime_job_events IN EXCLUSIVE MODE")
        fall_silent(lease)
        eventually(leader_waits, 60)
        leader.process.send_signal(signal.SIGSTOP)


def leader_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'orchestrator-clock'"
            " AND wait_event_type = 'Lock')"
        )
        return bool(cursor.fetchone()[0])


def test_a_leader_that_is_killed_or_asked_to_end_is_followed_at_once(schedulers):
    first, second = schedulers.leader_and_standby()
    first.process.kill()
    eventually(lambda: second.leads, 60)
    eventually(lambda: "disconnected)" in second.log(), 30)  # and not "silent)": it did not wait for an old beat
    third = schedulers.start()
    eventually(lambda: third.is_running, 60)
    assert second.stop() == 0
    eventually(lambda: third.leads, 60)
    eventually(lambda: "released)" in third.log(), 30)
    assert Job.objects.count() == 0
