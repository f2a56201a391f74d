"""The demo from its first line to its last: one job through a whole installation, shown as it goes."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections
from django.urls import reverse

from orchestrator.devtools import dev_server
from orchestrator.devtools.demo import repository
from orchestrator.devtools.demo.client import DemoError, DemoRequest, JobFollower
from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.devtools.dev_server import ListenAddress
from orchestrator.devtools.process_supervisor import ManagedProcess, ProcessSupervisor
from orchestrator.devtools.seed import SeedData
from orchestrator.ingest.models import Run
from runtime_jobs.models import Project
from workers.engines import engine_named

FINAL = frozenset({"uploaded", "failed", "canceled", "succeeded"})
OWN_TIMEOUT = 120
LATER = "http://127.0.0.1:8000"  # where `make up` will serve what the demo leaves
LOOKS_EVERY = 0.2
BEYOND_TIMEOUT = 120  # seconds that queue, checkout and upload may take besides


@dataclass
class DemoRun:
    """`order` None: the demo's own repository. `run()` returns what the last line says."""

    screen: Terminal
    order: DemoRequest | None
    crew: ProcessSupervisor = field(init=False)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.crew = ProcessSupervisor([], self._note)

    def run(self) -> dict[str, Any]:
        """Raises DemoRefused, CrewFailed, InstallationRefused; nothing runs any more in any case."""
        address = dev_server.free_address("127.0.0.1", 0)
        follower = None
        try:
            with self.screen.waiting("starting PostgreSQL, the server, the clock and a worker"):
                planted = dev_server.prepare()
                order = self.order or _own_order(planted)
                engine = self._start(address, order, planted)
            self._title(order, engine)
            follower = JobFollower(address.url, planted.api_token)
            follower.submit(order, org_slug=planted.org_slug, project_slug=planted.project_slug)
            job = self._follow(follower, time.monotonic() + order.timeout_seconds + BEYOND_TIMEOUT)
            return self._findings(job, planted)
        except (KeyboardInterrupt, DemoError):
            if follower:
                follower.cancel()  # or the next demo's worker would take it first
            raise
        finally:
            with self.screen.waiting("stopping"):
                self.crew.stop()

    def _start(self, address: ListenAddress, order: DemoRequest, planted: SeedData) -> str:
        """Start all processes at once and find out meanwhile which engine this machine can have; return its name."""
        self._add(dev_server.server(address, LOG_LEVEL="WARNING"))  # no line for every request that follows the job
        self._add(dev_server.clock(address))
        engine = self._engine()
        _admit(order, planted, engine)
        self._add(dev_server.worker(address, *dev_server.workers([1])[0], engine=engine, is_vital=True))
        dev_server.wait_until_it_answers(self.crew, address)
        if self.crew.asked:
            raise KeyboardInterrupt
        return engine

    def _add(self, member: ManagedProcess) -> None:
        self.crew.members.append(member)
        self.crew.start(member)

    def _engine(self) -> str:
        """The strongest engine of this machine. Less than namespaces is accepted for the demo's own repository only."""
        missing = engine_named("bubblewrap").check().missing
        if not missing:
            return "bubblewrap"
        if self.order is not None:
            raise DemoError(f"this machine cannot hold a strange repository: {'; '.join(missing)}")
        weaker = engine_named("restricted").check().missing
        if weaker:
            raise DemoError(f"this machine cannot hold any job: {'; '.join([*missing, *weaker])}")
        self.screen.warning(
            "THIS MACHINE FORBIDS NAMESPACES: the demo runs in the weaker engine `restricted`.",
            "That is good enough for its own repository, and for no other.",
        )
        return "restricted"

    def _title(self, order: DemoRequest, engine: str) -> None:
        kinds = {"bubblewrap": "bubblewrap (namespaces, seccomp)", "restricted": "restricted (Landlock, seccomp)"}
        self.screen.title(order, kinds[engine])

    def _follow(self, follower: JobFollower, deadline: float) -> dict[str, Any]:
        """Show events and output until the job has ended. Output comes before the event that ends the execution."""
        with self.screen.waiting("working"):
            while True:
                job = follower.job()
                events = list(follower.new_events())
                late = [
                    event for event in events if event["to_state"] in {"uploading", "succeeded", "failed", "canceled"}
                ]
                for event in events:
                    if event not in late:
                        self.screen.event(event)
                self.screen.output(follower.new_lines(rest=bool(late)))
                for event in late:
                    self.screen.event(event)
                if job["status"] in FINAL and not events:
                    return job
                self._keep_going(deadline)

    def _keep_going(self, deadline: float) -> None:
        self.crew.look()
        if self.crew.asked:
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            raise DemoError("the job did not end in time")
        time.sleep(LOOKS_EVERY)

    def _findings(self, job: dict[str, Any], planted: SeedData) -> dict[str, Any]:
        found = Run.objects.filter(run_id=job["ingest_run_id"]).first() if job["ingest_run_id"] else None
        run = found.payload if found else None
        connections.close_all()
        if run:
            self.screen.findings(run)
            self.screen.network(run)
            self.screen.processes(run)
        else:
            self.screen.output(self.told[-15:])
        self.screen.summary(_closing(job, run, planted))
        return {
            "job_id": job["job_id"],
            "status": job["status"],
            "ingest_run_id": job["ingest_run_id"],
            "exit_code": job["exit_code"],
            "counts": run["counts"] if run else {},
            "suspicious": sorted({item["rule"] for item in run["suspicious_activity"]["items"]}) if run else [],
        }

    def _note(self, name: str, line: str) -> None:
        """Keep what the processes say: it is shown only when something goes wrong."""
        self.told.append(f"{name or 'demo'}: {line}")


def _own_order(planted: SeedData) -> DemoRequest:
    return DemoRequest(planted.repo_url, planted.git_commit, repository.COMMAND, OWN_TIMEOUT)


def _admit(order: DemoRequest, planted: SeedData, engine: str) -> None:
    """Let the demo's project run this repository, in this engine, with this way out."""
    project = Project.objects.select_related("organization").get(
        slug=planted.project_slug, organization__slug=planted.org_slug
    )
    entry = "/".join(order.owner_and_name)
    if entry not in project.repositories:
        project.repositories.append(entry)
    project.least_isolation = "restricted" if engine == "restricted" else "namespaces"
    project.save(update_fields=["repositories", "least_isolation"])
    if order.egress is not None:
        project.organization.egress = list(order.egress)
        project.organization.save(update_fields=["egress"])
    connections.close_all()


def _closing(job: dict[str, Any], run: dict[str, Any] | None, planted: SeedData) -> list[tuple[str, str]]:
    rows = [("result", f"{job['status']}, exit code {job['exit_code']}")]
    if job["failure"]:
        rows.append(("failure", f"{job['failure']['reason']}: {job['failure']['message']}"))
    if run:
        rows.append(("resources", _resources(run["resources"]["peaks"])))
    state = _short(settings.STATE_DIR)
    rows.append(
        ("look at it", f"make up STATE_DIR={state}   (login {planted.admin_username} / {planted.admin_password})")
    )
    if job["ingest_run_id"]:
        rows.append(("", f"{LATER}{reverse('run-page', args=[job['ingest_run_id']])}"))
    rows.append(("", f"{LATER}{reverse('admin:runtime_jobs_job_changelist')}"))
    return rows


def _resources(peaks: dict[str, Any]) -> str:
    shown = {
        "memory_bytes": lambda value: f"{value / 2**20:.0f} MiB of memory",
        "processes": lambda value: f"{value} processes at once",
        "cpu_seconds": lambda value: f"{value:.2f} s of CPU",
        "disk_bytes": lambda value: f"{value / 2**20:.1f} MiB on disk",
    }
    return (
        ", ".join(words(peaks[name]) for name, words in shown.items() if peaks.get(name) is not None) or "not measured"
    )


def _short(path: Path) -> str:
    return str(path.relative_to(settings.ROOT)) if path.is_relative_to(settings.ROOT) else str(path)
