"""The table of types: what differs between them, so that nobody else has to ask which one a job is of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from runtime_jobs.models.jobs import Job
from runtime_jobs.policy import JobPolicy
from runtime_jobs.specs import runtime, steps
from runtime_jobs.specs.source import RepositorySource


class JobSpec(Protocol):
    """What is to be done, checked: a value of a type's own class."""

    @property
    def job_type(self) -> str: ...

    @property
    def source(self) -> RepositorySource | None:
        """The repository that it wants, which its project must allow."""
        ...

    @property
    def timeout_seconds(self) -> int: ...

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical request."""
        ...

    def columns(self) -> dict[str, Any]:
        """Of the new row of a job."""
        ...


@dataclass(frozen=True)
class JobType:
    """`policy` says, among the rest, what a success needs. `asked` makes the spec of a row again, `shown` the same as
    it was submitted, `leased` its members in a lease, from the job and how it must be held (`least_isolation`,
    `egress`). `needs_hosted_analysis`: only organizations that have hosted runtime analysis may submit it."""

    policy: Callable[..., JobPolicy]
    asked: Callable[[Job], JobSpec]
    shown: Callable[[Job], dict[str, Any]]
    leased: Callable[[Job, dict[str, Any]], dict[str, Any]]
    needs_hosted_analysis: bool = False


JOB_TYPES = {
    runtime.RUNTIME: JobType(
        runtime.runtime_policy,
        runtime.runtime_from_job,
        runtime.serialize_runtime,
        runtime.serialize_runtime_for_lease,
        needs_hosted_analysis=True,
    ),
    steps.STEPS: JobType(
        steps.steps_policy, steps.steps_from_job, steps.serialize_steps, steps.serialize_steps_for_lease
    ),
}
