"""The shared parts of a worker that every job uses."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from workers.agent.checkout import Checkout
from workers.agent.heartbeat import HeartbeatSender
from workers.agent.http.client import OrchestratorClient
from workers.agent.http.wire import JobPayload, OciPayload
from workers.agent.readiness import OwnFailures, Unready
from workers.agent.result_delivery import ResultDelivery
from workers.agent.result_spool import ResultSpool
from workers.agent.workspace import WorkFolder
from workers.engines.contract import Engine, RunLimits, TraceLevel
from workers.engines.oci.engine import OciEngine
from workers.report.trace_reader import TraceReaders


@dataclass(frozen=True)
class WorkerContext:
    """The shared parts of a worker. `offered`: the capabilities that the engine has proven."""

    worker_id: str
    client: OrchestratorClient
    heartbeat: HeartbeatSender
    engine: Engine
    offered: frozenset[str]
    checkout: Checkout
    folder: WorkFolder
    spool: ResultSpool
    delivery: ResultDelivery
    trace_readers: TraceReaders
    limits: RunLimits = field(default_factory=RunLimits)
    failures: OwnFailures = field(default_factory=OwnFailures)

    @property
    def images(self) -> OciEngine | None:
        """Return the engine if it runs images."""
        return self.engine if isinstance(self.engine, OciEngine) and "images" in self.offered else None

    def unready(self) -> Unready | None:
        """Return why this worker does not claim now, or None."""
        shortage = self.engine.shortage(self.folder.path)
        return Unready("disk_low", shortage) if shortage else self.failures.pause()

    def missing_capabilities(self, job: JobPayload) -> list[str]:
        """Return what this job requires and the worker cannot offer, for people."""
        work, steps = job.work, job.steps
        lacking = {
            f"isolation by {work.least_isolation}": not self.engine.isolation.satisfies(work.least_isolation),
            "network through the egress proxy": work.allow_network and "egress" not in self.offered,
            "a command that may not start others": not work.allow_exec and "exec_control" not in self.offered,
            "a trace": work.trace is not TraceLevel.NONE and "ptrace" not in self.offered,
            "images": (job.oci is not None and self.images is None) or (steps is not None and steps.image is not None),
        }
        if job.oci is not None:
            lacking |= _larger_than_machine(job.oci, self.folder.path)
        return [name for name, missing_capabilities in lacking.items() if missing_capabilities]


def _larger_than_machine(job: OciPayload, folder: Path) -> dict[str, bool]:
    """Return the resources that the job asks for, and whether the whole machine has less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = os.statvfs(folder)
    return {
        f"{job.cpus:,} CPUs": job.cpus > len(os.sched_getaffinity(0)),
        f"{job.memory_bytes:,} bytes of memory": job.memory_bytes > memory,
        f"{job.disk_bytes:,} bytes of disk": job.disk_bytes > disk.f_blocks * disk.f_frsize,
    }
