"""Runs the demo: one job through a whole installation, displayed while it runs."""

import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.urls import reverse

from orchestrator.devtools import dev_server
from orchestrator.devtools.demo import repository
from orchestrator.devtools.demo.client import DemoError, DemoRequest, JobFollower
from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.devtools.dev_server import ListenAddress
from orchestrator.devtools.process_supervisor import ManagedProcess, ProcessSupervisor, ProcessSupervisorError
from orchestrator.devtools.seed import SeedData
from orchestrator.ingest.models import Run
from runtime_jobs.models import Project
from workers.engines import engine_named

FINAL_STATUSES = frozenset({"uploaded", "failed", "canceled", "succeeded"})
OWN_TIMEOUT_SECONDS = 120  # of the demo's own command
POLL_SECONDS = 0.2
START_TIMEOUT_SECONDS = 60.0  # from the submit until a worker has started the job
OVERHEAD_SECONDS = 120  # for queue, checkout and upload, beyond the command's own timeout
SHOWN_OUTPUT_LINES = 15  # of the processes, after a failure


@dataclass
class DemoRun:
    """Starts the installation, submits one job and follows it. `request` is None for the demo's own repository."""

    screen: Terminal
    request: DemoRequest | None
    supervisor: ProcessSupervisor = field(init=False)
    process_output: list[str] = field(default_factory=list)  # displayed only when something goes wrong

    def __post_init__(self) -> None:
        self.supervisor = ProcessSupervisor([], self._keep_output)

    def run(self) -> dict[str, Any]:
        """Run the demo and return its result. All processes have ended when it returns or raises.

        Raises:
            DemoError: The job was rejected, or was not started or finished in time.
            DevServerError: The installation cannot start here.
            ProcessSupervisorError: One of its processes died too often.
        """
        address, listener = dev_server.listen("127.0.0.1", 0)
        follower = None
        try:
            with self.screen.waiting("starting PostgreSQL, the server, the scheduler and a worker"):
                seed_data = dev_server.prepare()
                request = self.request or _own_request(seed_data)
                engine = self._start(address, listener, request, seed_data)
            self._title(request, engine)
            follower = JobFollower(address.url, seed_data.api_token)
            follower.submit(request, org_slug=seed_data.org_slug, project_slug=seed_data.project_slug)
            job = self._follow(follower, request.timeout_seconds)
            return self._report(job, seed_data)
        except (KeyboardInterrupt, DemoError, ProcessSupervisorError):
            if follower:
                follower.cancel()  # otherwise the next worker would run it first
            raise
        finally:
            with self.screen.waiting("stopping"), listener:
                self.supervisor.stop()

    def _start(self, address: ListenAddress, listener: socket.socket, request: DemoRequest, seed_data: SeedData) -> str:
        """Start all processes, and determine meanwhile which engine this machine supports; return its name."""
        self._add(dev_server.server(address, listener, LOG_LEVEL="WARNING"))  # no line for each request of the follower
        self._add(dev_server.scheduler(address))
        self._add(dev_server.housekeeping(address))
        engine = self._choose_engine()
        _admit(request, seed_data, engine)
        self._add(dev_server.worker(address, *dev_server.workers([1])[0], engine=engine, is_vital=True))
        dev_server.wait_until_ready(self.supervisor, address)
        if self.supervisor.stop_requests:
            raise KeyboardInterrupt
        return engine

    def _add(self, process: ManagedProcess) -> None:
        self.supervisor.processes.append(process)
        self.supervisor.start(process)

    def _choose_engine(self) -> str:
        """Return the strongest engine of this machine; `restricted` is accepted for the demo's own repository only."""
        missing = engine_named("bubblewrap").check().missing
        if not missing:
            return "bubblewrap"
        if self.request is not None:
            raise DemoError(f"this machine cannot isolate a repository that is not the demo's: {'; '.join(missing)}")
        weaker = engine_named("restricted").check().missing
        if weaker:
            raise DemoError(f"this machine cannot isolate any job: {'; '.join([*missing, *weaker])}")
        self.screen.warning(
            "THIS MACHINE FORBIDS NAMESPACES: the demo runs in the weaker engine `restricted`.",
            "That engine is sufficient for the demo's own repository, and for no other.",
        )
        return "restricted"

    def _title(self, request: DemoRequest, engine: str) -> None:
        kinds = {"bubblewrap": "bubblewrap (namespaces, seccomp)", "restricted": "restricted (Landlock, seccomp)"}
        self.screen.title(request, kinds[engine])

    def _follow(self, follower: JobFollower, timeout_seconds: float) -> dict[str, Any]:
        """Display events and output until the job has ended. Output comes before the event that ends the execution."""
        begun = time.monotonic()
        is_started = False
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
                is_started = is_started or any(event["to_state"] == "starting" for event in events)
                self.screen.output(follower.new_lines(is_complete=bool(late)))
                for event in late:
                    self.screen.event(event)
                if job["status"] in FINAL_STATUSES and not events:
                    return job
                elapsed = time.monotonic() - begun
                if not is_started and elapsed > START_TIMEOUT_SECONDS:
                    raise DemoError(self._not_started(follower))
                if elapsed > timeout_seconds + OVERHEAD_SECONDS:
                    raise DemoError(f"the job did not end within {timeout_seconds + OVERHEAD_SECONDS:.0f} s")
                self._wait()

    def _wait(self) -> None:
        self.supervisor.poll()
        if self.supervisor.stop_requests:
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)

    def _not_started(self, follower: JobFollower) -> str:
        """Return why no worker has started the job, and what to do."""
        return (
            f"no worker started the job within {START_TIMEOUT_SECONDS:.0f} s, so it was canceled. "
            f"The server's reason: {follower.pending_message() or 'a worker claimed it and gave it back'} "
            "The lines above are the output of the processes. If another worker runs jobs on this machine, stop it or "
            "wait for it. If older jobs or limits are in the way, use an empty state directory: "
            "make demo STATE_DIR=.state-demo"
        )

    def _report(self, job: dict[str, Any], seed_data: SeedData) -> dict[str, Any]:
        """Display the findings and the next commands, and return the result for programs."""
        stored = Run.objects.filter(run_id=job["ingest_run_id"]).first() if job["ingest_run_id"] else None
        run = stored.payload if stored else None
        connections.close_all()
        if run:
            self.screen.findings(run)
            self.screen.network(run)
            self.screen.processes(run)
        else:
            self.screen.output(self.process_output[-SHOWN_OUTPUT_LINES:])
        self.screen.summary(_summary(job, run))
        self.screen.next_steps(*_next_steps(job, seed_data))
        return {
            "job_id": job["job_id"],
            "status": job["status"],
            "ingest_run_id": job["ingest_run_id"],
            "exit_code": job["exit_code"],
            "counts": run["counts"] if run else {},
            "suspicious": sorted({item["rule"] for item in run["suspicious_activity"]["items"]}) if run else [],
        }

    def _keep_output(self, name: str, line: str) -> None:
        self.process_output.append(f"{name or 'demo'}: {line}")


def _own_request(seed_data: SeedData) -> DemoRequest:
    return DemoRequest(seed_data.repo_url, seed_data.git_commit, repository.COMMAND, OWN_TIMEOUT_SECONDS)


def _admit(request: DemoRequest, seed_data: SeedData, engine: str) -> None:
    """Allow the seeded project this repository, this engine and this network access."""
    project = Project.objects.select_related("organization").get(
        slug=seed_data.project_slug, organization__slug=seed_data.org_slug
    )
    entry = "/".join(request.owner_and_name)
    if entry not in project.repositories:
        project.repositories.append(entry)
    project.least_isolation = "restricted" if engine == "restricted" else "namespaces"
    project.save(update_fields=["repositories", "least_isolation"])
    if request.egress is not None:
        project.organization.egress = list(request.egress)
        project.organization.save(update_fields=["egress"])
    connections.close_all()


def _summary(job: dict[str, Any], run: dict[str, Any] | None) -> list[tuple[str, str]]:
    rows = [("result", f"{job['status']}, exit code {job['exit_code']}")]
    if job["failure"]:
        rows.append(("failure", f"{job['failure']['reason']}: {job['failure']['message']}"))
    if run:
        rows.append(("resources", _resources(run["resources"]["peaks"])))
    return rows


def _next_steps(job: dict[str, Any], seed_data: SeedData) -> tuple[str, list[tuple[str, str]]]:
    """Return the command that serves what the demo left behind, and what it then offers in a browser."""
    given = os.environ.get("PORT", "")
    port = int(given) if given.isascii() and given.isdecimal() and 0 < int(given) < 65536 else 8000
    url = f"http://127.0.0.1:{port}"
    page = reverse("run-page", args=[job["ingest_run_id"]]) if job["ingest_run_id"] else reverse("admin:index")
    rows = [
        ("this run", f"{url}{page}"),
        ("all jobs", f"{url}{reverse('admin:runtime_jobs_job_changelist')}"),
        ("user name", seed_data.admin_username),
        ("password", seed_data.admin_password or "(the one that you have set)"),
    ]
    return f"make up {dev_server.variables_for_shell(port)}".strip(), rows


def _resources(peaks: dict[str, Any]) -> str:
    formats = {
        "memory_bytes": lambda value: f"{value / 2**20:.0f} MiB of memory",
        "processes": lambda value: f"{value} processes at a time",
        "cpu_seconds": lambda value: f"{value:.2f} s of CPU",
        "disk_bytes": lambda value: f"{value / 2**20:.1f} MiB on disk",
    }
    measured = [formatted(peaks[name]) for name, formatted in formats.items() if peaks.get(name) is not None]
    return ", ".join(measured) or "not measured"
