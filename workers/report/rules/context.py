"""What a rule is asked to judge: one fact, the process behind it, and what this job may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from workers.report.events import TraceEvent
from workers.report.job_paths import JobPaths
from workers.report.processes import Program, TracedProcess

F_co = TypeVar("F_co", bound=TraceEvent, covariant=True)


@dataclass(frozen=True, slots=True)
class RuleContext(Generic[F_co]):
    """`expected`: the hosts that the job may speak to, as in `Egress.allow`."""

    fact: F_co
    process: TracedProcess
    ground: JobPaths
    expected: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.process.leader.program
