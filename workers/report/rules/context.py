"""The input of a rule: one event, its process, and the permissions of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from workers.report.events import TraceEvent
from workers.report.job_paths import JobPaths
from workers.report.processes import Program, TracedProcess

E_co = TypeVar("E_co", bound=TraceEvent, covariant=True)


@dataclass(frozen=True, slots=True)
class RuleContext(Generic[E_co]):
    """The input of a rule. `expected`: the hosts that the job may reach, as in `EgressPolicy.allow`."""

    event: E_co
    process: TracedProcess
    paths: JobPaths
    expected: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.process.leader.program
