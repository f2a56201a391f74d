"""The table of job types: everything that differs between them, so that no other module asks for the type."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from runtime_jobs.models.jobs import Job
from runtime_jobs.policy import JobPolicy
from runtime_jobs.specs import runtime, steps
from runtime_jobs.specs.source import RepositorySource


class JobSpec(Protocol):
    """A validated specification, of the class of its job type."""

    @property
    def job_type(self) -> str: ...

    @property
    def source(self) -> RepositorySource | None:
        """The repository, which the project must allow."""
        ...

    @property
    def timeout_seconds(self) -> int: ...

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical request."""
        ...

    def columns(self) -> dict[str, Any]:
        """Return the columns of a new job."""
        ...


@dataclass(frozen=True)
class JobType:
    """A job type.

    Attributes:
        policy: Returns the policy of a new job.
        asked: Returns the specification that a row contains.
        shown: Returns the specification as it was submitted.
        leased: Returns the members of a lease, by the job and its confinement (`least_isolation`, `egress`).
        needs_hosted_analysis: Only organizations with hosted runtime analysis may submit this type.
    """

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
