"""What every job of this worker is done with."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.agent.checkout import Checkout
from workers.agent.client import Client
from workers.agent.delivery import Delivery
from workers.agent.heartbeat import Heartbeat
from workers.agent.spool import Spool
from workers.agent.wire import Job
from workers.agent.workspace import WorkFolder
from workers.engines.base import Engine, Limits


@dataclass(frozen=True)
class Bench:
    """`offered`: the capabilities that the engine has proven."""

    worker_id: str
    client: Client
    heartbeat: Heartbeat
    engine: Engine
    offered: frozenset[str]
    checkout: Checkout
    folder: WorkFolder
    spool: Spool
    delivery: Delivery
    limits: Limits = field(default_factory=Limits)

    def lacks(self, job: Job) -> list[str]:
        """What this job asks for and cannot have here, in words."""
        work, steps = job.work, job.steps
        lacking = {
            f"isolation by {work.least_isolation}": not self.engine.isolation.satisfies(work.least_isolation),
            "network through the egress proxy": work.allow_network and "egress" not in self.offered,
            "a command that may not start others": not work.allow_exec and "exec_control" not in self.offered,
            "images": steps is not None and steps.image is not None,
        }
        return [name for name, lacks in lacking.items() if lacks]
