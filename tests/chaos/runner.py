"""One run: an installation, load on it, faults by the schedule, and then time until everything has ended."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import requests
from ulid import ULID

from config import paths
from tests.chaos.channel_runners import RunnerFleet
from tests.chaos.client import Client, Credentials, Ledger, job_of, path_of
from tests.chaos.processes import Part, Postgres, Storage, free_port, manage, serve
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import Fault, schedule
from tests.chaos.webhook_receiver import NETWORK, WebhookReceiver
from tests.chaos.workflow_runners import WorkflowClient, WorkflowFleet

CLIENTS = 3
SERVERS = 2
DISPATCHERS = 2
DELIVERED_WITHIN = 150.0  # after the last job: the claims of a killed dispatcher last a minute
RECOVERS_WITHIN = 90.0
STARTS_WITHIN = 120.0
WORKS_WITHIN = 120.0
LEASE = {"LEASE_TTL_SECONDS": "10", "HEARTBEAT_INTERVAL_SECONDS": "2", "ACKNOWLEDGE_WITHIN_SECONDS": "5"}
LEASE |= {"ACTIONS_LEASE_SECONDS": "10", "CANCEL_DEADLINE_SECONDS": "10"}
LEASE |= {"RUNNER_HEARTBEAT_TIMEOUT_SECONDS": "10", "RUNNER_LATE_RESULT_SECONDS": "20"}
MEND_AGAIN_SECONDS = 0.2
WORKS_AFTER_MENDING = ("pause", "disk", "postgres-demotion")  # nothing can work during these
# The work directory of one worker is a small disk of its own, which ends with its process.
SMALL_DISK = 'mkdir -p "$0" && mount -t tmpfs -o size=128m,mode=0711 none "$0" && exec "$@"'
FULL_BYTES = 120 << 20
RESERVE = {"WORKER_RESERVE_BYTES": str(32 << 20), "WORKER_RESERVE_INODES": "100", "WORKER_DISK_VOLUMES": "no"}
OPEN = """SELECT (SELECT count(*) FROM runtime_jobs WHERE finished_at IS NULL)
     + (SELECT count(*) FROM workflow_runs WHERE completed_at IS NULL)"""
UNDELIVERED = """SELECT (SELECT count(*) FROM deliveries WHERE status = 'pending')
     + (SELECT count(*) FROM runtime_job_events e WHERE e.created_at >= (SELECT min(created_at) FROM webhooks)
           AND e.created_at < %s) - (SELECT count(*) FROM deliveries WHERE event_type LIKE 'job.%%'
                                                                        OR event_type LIKE 'lease.%%')"""
LONG_RUN_SECONDS = 100  # a run of this length has executions of more than a minute


@dataclass(frozen=True)
class Recovery:
    """`seconds` from the fault until it worked again; None: never."""

    fault: Fault
    seconds: float | None


@dataclass
class Site:
    """The tenants of the run: a client's credentials and bodies, each worker's file and options, each runner's key.

    Attributes:
        workflow_runners: The registration tokens of the runners of workflow jobs.
        secrets: The values that no log may contain.
    """

    credentials: Credentials
    bodies: list[dict[str, Any]]
    workers: list[tuple[str, Path, list[str]]]
    runners: list[tuple[str, str]]
    workflow_runners: list[str]
    secrets: set[bytes]


@dataclass
class ChaosRun:
    state: Path
    postgres: Postgres
    storage: Storage
    receiver: WebhookReceiver
    site: Site
    seed: int
    seconds: float
    max_open_jobs: int
    say: Callable[[str], None]
    ledger: Ledger = field(default_factory=Ledger)
    recoveries: list[Recovery] = field(default_factory=list)
    injected: int = 0
    all_final: bool = False
    _awaiting: set[Fault] = field(default_factory=set)  # killed servers for which no other one has taken a job yet

    def run(self, drain_seconds: float) -> None:
        """Burn for `seconds`, then give everything `drain_seconds` to end."""
        ports = [free_port() for _ in range(SERVERS)]
        self.server_urls = [f"http://127.0.0.1:{port}" for port in ports]
        with (
            Proxy([("127.0.0.1", port) for port in ports], self.seed) as self.proxy,
            self._installed(ports),
            self._fleet() as self.runners,
            self._workflow_fleet() as self.workflows,
        ):
            clients = self._clients()
            self._burn(clients)
            self.all_final = self._drain(drain_seconds)
            self.say(f"all final: {self.all_final}")

    # --- the installation ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _installed(self, ports: list[int]) -> Iterator[None]:
        environment = self._environment()
        log = self.state / "log"
        log.mkdir()
        self.servers = [
            Part(name, serve(port), environment, log / name)
            for name, port in ((f"server-{number}", port) for number, port in enumerate(ports, 1))
        ]
        self.clock = Part("clock", manage("runclock", "--period", "0.5"), environment, log / "clock")
        self.housekeeping = Part("housekeeping", manage("runhousekeeping"), environment, log / "housekeeping")
        self.workers = [
            Part(
                name, manage("runworker", *self._called(name, file), *options), self._of_worker(environment), log / name
            )
            for name, file, options in self.site.workers
        ]
        self._give_small_disk()
        self.dispatchers = [
            Part(f"dispatcher-{number}", manage("rundispatcher"), environment, log / f"dispatcher-{number}")
            for number in range(1, DISPATCHERS + 1)
        ]
        self.parts = [*self.servers, self.clock, self.housekeeping, *self.dispatchers, *self.workers]
        try:
            for part in self.parts:
                part.start()
            _until(self._is_ready, STARTS_WITHIN)
            yield
        finally:
            for part in self.parts:
                part.signal(signal.SIGCONT)
            # At the same time: a worker may wait for the answer to a claim, and a server for the end of a request.
            for ending in (self.workers, self.parts):
                for part in ending:
                    part.signal(signal.SIGTERM)
                for part in ending:
                    part.end(10)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "DATABASE_URL": self.postgres.url,
            "STATE_DIR": str(self.state),
            "PYTHONUNBUFFERED": "1",
            **LEASE,
            "REPOSITORY_ROOT": str(self.state / "origins"),
            "WEBHOOK_NETWORKS": NETWORK,
            **self.storage.variables,
        }

    def _of_worker(self, environment: dict[str, str]) -> dict[str, str]:
        """A worker has no database: what it is given cannot connect."""
        mirrors = f'{{"https://github.com/": "{paths.home(self.state)}/mirrors/"}}'
        nothing = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}
        return environment | nothing | {"GIT_MIRRORS": mirrors, "RUNTIME_ORCHESTRATOR_TEST": "1"}

    def _give_small_disk(self) -> None:
        """Choose the worker whose disk is filled, if another one can execute its jobs meanwhile."""
        sandboxed = [worker for worker in self.workers if "bubblewrap" in worker.command]
        self.small: Part | None = sandboxed[0] if os.geteuid() == 0 and len(sandboxed) > 1 else None
        if self.small is not None:
            prefix = ["unshare", "--mount", "sh", "-c", SMALL_DISK, str(paths.home(self.state) / self.small.name)]
            self.small.command = [*prefix, *self.small.command]
            self.small.environment = {**self.small.environment, **RESERVE}

    def _called(self, name: str, file: Path) -> list[str]:
        folder = paths.home(self.state) / name
        return ["--server", self.proxy.url, "--token-file", str(file), "--work-dir", str(folder)]

    def _is_ready(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return all(requests.get(f"{url}/readyz", timeout=2).status_code == 200 for url in self.server_urls)
        return False

    def _fleet(self) -> RunnerFleet:
        return RunnerFleet(self.proxy.url, self.site.runners, self.seed, long=self.seconds >= LONG_RUN_SECONDS)

    def _workflow_fleet(self) -> WorkflowFleet:
        return WorkflowFleet(self.proxy.url, self.site.workflow_runners, self.seed, self.site.secrets)

    # --- load ---------------------------------------------------------------------------------------------------------

    def _clients(self) -> list[threading.Thread]:
        self.over, self.room = threading.Event(), threading.Event()
        self.room.set()
        threads = [threading.Thread(target=self._client(number).run) for number in range(CLIENTS)]
        threads.append(threading.Thread(target=WorkflowClient(self._client(CLIENTS), self.workflows.ledger).run))
        threads.append(threading.Thread(target=self._keep_room))
        for thread in threads:
            thread.start()
        return threads

    def _client(self, number: int) -> Client:
        return Client(
            name=f"client-{number}",
            url=self.proxy.url,
            credentials=self.site.credentials,
            bodies=self.site.bodies,
            ledger=self.ledger,
            room=self.room,
            over=self.over,
            chance=Random(f"{self.seed}/client/{number}"),
        )

    def _keep_room(self) -> None:
        while not self.over.wait(0.2):
            found = self.open_jobs()
            if found is not None and found > self.max_open_jobs:
                self.room.clear()
            else:
                self.room.set()

    def open_jobs(self) -> int | None:
        """Count the jobs that have not ended and the runs whose end is not recorded; None while the database is down."""
        row = self.postgres.ask(OPEN)
        return None if row is None else int(str(row[0]))

    # --- faults -------------------------------------------------------------------------------------------------------

    def _burn(self, clients: list[threading.Thread]) -> None:
        began, order = time.monotonic(), itertools.count()
        due = [(fault.at, next(order), fault, self._strike) for fault in schedule(self.seed, self.seconds)]
        due.append((self.seconds, next(order), None, None))
        heapq.heapify(due)
        self._watching: list[threading.Thread] = []
        try:
            while due:
                at, _, fault, act = heapq.heappop(due)
                time.sleep(max(0.0, began + at - time.monotonic()))
                if act == self._strike and self._strike(fault):
                    heapq.heappush(due, (at + fault.lasts, next(order), fault, self._mend))
                elif act == self._mend and not self._mend(fault):
                    heapq.heappush(due, (time.monotonic() - began + MEND_AGAIN_SECONDS, next(order), fault, act))
            with contextlib.suppress(TimeoutError):  # a loaded machine may need longer than a short run
                _until(self._has_worked, WORKS_WITHIN)
        finally:
            self.over.set()
            for thread in [*clients, *self._watching]:
                thread.join()

    def _has_worked(self) -> bool:
        """Return whether runners of both kinds have received and finished work."""
        return bool(self.runners.ledger.acknowledged and self.workflows.ledger.log_bytes and self.workflows.ledger.ends)

    def _part(self, fault: Fault) -> Part:
        if fault.kind in {"worker", "pause"}:
            return self.workers[fault.target % len(self.workers)]
        if fault.kind == "server":
            return self.servers[fault.target % SERVERS]
        if fault.kind == "dispatcher":
            return self.dispatchers[fault.target % DISPATCHERS]
        return {"housekeeping": self.housekeeping, "storage": self.storage.part}.get(fault.kind, self.clock)

    def _strike(self, fault: Fault) -> bool:
        """Whether it hit anything, so that it has to be mended."""
        if fault.kind in {"runner", "workflow-runner"}:
            return self._kill_runner(fault)
        hit = {
            "postgres-kill": lambda: self.postgres.send_signal(signal.SIGKILL),
            "postgres-immediate": lambda: self.postgres.send_signal(signal.SIGQUIT),
            "postgres-backend": self.postgres.kill_a_backend,
            "postgres-demotion": self.postgres.demote,
            "pause": lambda: self._part(fault).signal(signal.SIGSTOP),
            "disk": self._fill_disk,
        }.get(fault.kind, lambda: self._part(fault).kill())()
        self.injected += hit
        if hit and fault.kind == "server":
            self._awaiting.add(fault)
        if hit and fault.kind not in WORKS_AFTER_MENDING:
            self._watch(fault)
        return bool(hit)

    def _full(self) -> Path | None:
        """Return the file that fills the small disk, as its worker sees it, or None if that does not run."""
        if self.small is None or self.small.process is None or not self.small.lives:
            return None
        return Path(f"/proc/{self.small.process.pid}/root{paths.home(self.state) / self.small.name}/full")

    def _fill_disk(self) -> bool:
        path = self._full()
        if path is None or not os.path.ismount(path.parent):
            return False
        with contextlib.suppress(OSError), path.open("wb") as file:  # no space left
            os.posix_fallocate(file.fileno(), 0, FULL_BYTES)
        return True

    def _kill_runner(self, fault: Fault) -> bool:
        """Nothing has to be mended: a new process of the runner connects at once."""
        fleet = self.runners if fault.kind == "runner" else self.workflows
        if len(fleet):
            fleet.kill(fault.target % len(fleet))
            self.injected += 1
            self._watch(fault)
        return False

    def _mend(self, fault: Fault) -> bool:
        """Return whether it is mended. A killed server stays away until another one has taken a job."""
        if fault.kind == "pause":
            self._part(fault).signal(signal.SIGCONT)
            self._watch(fault)
        elif fault.kind == "disk":
            if path := self._full():
                path.unlink(missing_ok=True)
            self._watch(fault)
        elif fault.kind == "postgres-demotion":
            if not self.postgres.promote():
                return False
            self._watch(fault)
        elif not fault.kind.startswith("postgres") and not self._part(fault).lives:
            if fault in self._awaiting and any(server.lives for server in self.servers):
                return False
            self._part(fault).start()
        return True

    def _watch(self, fault: Fault) -> None:
        watching = threading.Thread(target=self._recovery, args=[fault, datetime.now(UTC), time.monotonic()])
        watching.start()
        self._watching.append(watching)

    def _recovery(self, fault: Fault, struck_at: datetime, began: float) -> None:
        works = {
            "clock": self._clock_beats,
            "worker": self._worker_claims,
            "pause": self._worker_is_heard,
            "disk": self._worker_is_ready,
            "runner": lambda fault, _struck_at: self.runners.has_received_since(
                fault.target % len(self.runners), began
            ),
            "workflow-runner": lambda fault, _struck_at: self.workflows.has_answered_since(
                fault.target % len(self.workflows), began
            ),
            "housekeeping": self._task_succeeded,
            "dispatcher": self._events_are_read,
            "storage": lambda _fault, _struck_at: self.storage.answers(),
        }
        look = works.get(fault.kind, self._writes)
        seconds = None
        with contextlib.suppress(TimeoutError):
            if fault.kind == "server":
                _until(lambda: self._is_served_by_others(fault), RECOVERS_WITHIN)
                self._awaiting.discard(fault)
            _until(lambda: look(fault, struck_at), RECOVERS_WITHIN)
            seconds = time.monotonic() - began
        self._awaiting.discard(fault)
        self.recoveries.append(Recovery(fault, seconds))
        self.say(f"{fault.at:7.1f} s  {fault.kind:<20} {'never recovered' if seconds is None else f'{seconds:.1f} s'}")

    def _is_served_by_others(self, fault: Fault) -> bool:
        others = [number for number in range(SERVERS) if number != fault.target % SERVERS]
        return all(self._takes_job(number, f"probe-{fault.at}-while-down") for number in others)

    def _writes(self, fault: Fault, _struck_at: datetime) -> bool:
        return all(self._takes_job(number, f"probe-{fault.at}-{number}") for number in range(SERVERS))

    def _takes_job(self, number: int, key: str) -> bool:
        """Return whether a server takes a job, which is a promise like any other."""
        body = self.site.bodies[0]
        path = path_of(body)
        address = self.server_urls[number] + path
        try:
            answer = requests.post(address, **self.site.credentials.request(path, body, key), timeout=5)
        except requests.RequestException:
            return False
        if answer.status_code not in {201, 503}:
            self.ledger.wrong.append(f"{key}: {answer.status_code} {answer.text[:300]}")
        if answer.status_code == 201:
            self.ledger.submitted[key] = job_of(answer)
        return answer.status_code == 201

    def _clock_beats(self, _fault: Fault, struck_at: datetime) -> bool:
        return self.postgres.ask("SELECT 1 FROM clock_beats WHERE beat_at > %s", struck_at) is not None

    def _events_are_read(self, _fault: Fault, struck_at: datetime) -> bool:
        return self.postgres.ask("SELECT 1 FROM dispatch_position WHERE beat_at > %s", struck_at) is not None

    def _task_succeeded(self, _fault: Fault, struck_at: datetime) -> bool:
        return self.postgres.ask("SELECT 1 FROM housekeeping_tasks WHERE succeeded_at > %s", struck_at) is not None

    def _worker_is_heard(self, fault: Fault, struck_at: datetime) -> bool:
        question = "SELECT 1 FROM workers_worker WHERE slug = %s AND last_seen_at > %s"
        return self.postgres.ask(question, self._part(fault).name, struck_at) is not None

    def _worker_is_ready(self, _fault: Fault, struck_at: datetime) -> bool:
        """Return whether it claims again: a claim says that it is ready."""
        question = "SELECT 1 FROM workers_worker WHERE slug = %s AND unready_reason = '' AND last_seen_at > %s"
        return self.small is not None and self.postgres.ask(question, self.small.name, struck_at) is not None

    def _worker_claims(self, fault: Fault, struck_at: datetime) -> bool:
        """Its new process has claimed: a session is named by the time of its birth."""
        question = "SELECT 1 FROM workers_worker WHERE slug = %s AND session > %s"
        born = str(ULID.from_datetime(struck_at))
        return self.postgres.ask(question, self._part(fault).name, born) is not None

    # --- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, seconds: float) -> bool:
        """The network is faithful, everything runs: whether every job ends within so many seconds."""
        self.proxy.faithful = True
        for part in [*self.parts, self.storage.part]:
            part.signal(signal.SIGCONT)
            if not part.lives:
                part.start()
        with contextlib.suppress(TimeoutError):
            _until(lambda: self.open_jobs() == 0, seconds)
            ended_at = datetime.now(UTC)
            with contextlib.suppress(TimeoutError):  # the report names what was not delivered
                _until(lambda: self._is_delivered(ended_at), DELIVERED_WITHIN)
            return True
        return False

    def _is_delivered(self, ended_at: datetime) -> bool:
        row = self.postgres.ask(UNDELIVERED, ended_at)
        return row is not None and int(str(row[0])) <= 0


def _until(true: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


def audit(environment: dict[str, str]) -> list[str]:
    """Return what `manage.py audit --chains --objects` reports as broken."""
    done = subprocess.run(
        manage("audit", "--chains", "--objects"),
        cwd=paths.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines() if done.returncode else []
