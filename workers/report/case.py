"""What a rule is asked to judge: one fact, the process behind it, and what this job may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from workers.report.facts import Fact
from workers.report.paths import Ground
from workers.report.processes import Process, Program

F_co = TypeVar("F_co", bound=Fact, covariant=True)


@dataclass(frozen=True, slots=True)
class Case(Generic[F_co]):
    """`expected`: the hosts that the job may speak to, as in `Egress.allow`."""

    fact: F_co
    process: Process
    ground: Ground
    expected: tuple[str, ...] = ()

    @property
    def program(self) -> Program:
        return self.process.leader.program
