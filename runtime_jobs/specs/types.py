"""The table of types: what differs between them, so that nobody else has to ask which one a job is of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from runtime_jobs.models.jobs import Job
from runtime_jobs.policy import Policy
from runtime_jobs.specs import runtime, steps
from runtime_jobs.specs.source import Source


class Spec(Protocol):
    """What is to be done, checked: a value of a type's own class."""

    @property
    def job_type(self) -> str: ...

    @property
    def source(self) -> Source | None:
        """The repository that it wants, which its project must allow."""
        ...

    @property
    def timeout_seconds(self) -> int: ...

    def columns(self) -> dict[str, Any]:
        """Of the new row of a job."""
        ...


@dataclass(frozen=True)
class JobType:
    """`policy` says, among the rest, what a success needs. `asked` makes the spec of a row again, `shown` the same as
    it was submitted, `leased` its members in a lease, from the job and how it must be held (`least_isolation`,
    `egress`). `needs_hosted_analysis`: only organizations that have hosted runtime analysis may submit it."""

    policy: Callable[..., Policy]
    asked: Callable[[Job], Spec]
    shown: Callable[[Job], dict[str, Any]]
    leased: Callable[[Job, dict[str, Any]], dict[str, Any]]
    needs_hosted_analysis: bool = False


TYPES = {
    runtime.RUNTIME: JobType(
        runtime.runtime_policy, runtime.asked, runtime.shown, runtime.leased, needs_hosted_analysis=True
    ),
    steps.STEPS: JobType(steps.steps_policy, steps.asked, steps.shown, steps.leased),
}
