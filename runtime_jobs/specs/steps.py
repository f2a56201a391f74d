"""Type `steps`: shell steps in order in one workspace, with or without a repository (documents 001 and 003)."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from runtime_jobs.control_characters import wrong_label
from runtime_jobs.models.jobs import Job
from runtime_jobs.specs.source import RepositorySource, digest_of, source_of

STEPS = "steps"
IMAGE = "image"  # the capability of a worker that has an engine for images

MAX_STEPS = 64
MAX_STEP_BYTES = 16_384  # characters; the kernel takes no argument of more than 128 KiB
MAX_VARIABLES = 64
MAX_VALUE_LENGTH = 8_192
MAX_PATTERNS = 32
MAX_CACHES = 32
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Pattern:
    """A pattern of artifacts, relative to the working directory of the job."""

    type: str
    path_glob: str


@dataclass(frozen=True)
class Cache:
    """Files that a runner may keep for the next job. A job must succeed without them."""

    type: str
    key: str
    paths: tuple[str, ...]
    read_only: bool = False


@dataclass(frozen=True)
class StepsSpec:
    """A specification of steps: lines for `sh -c` in one workspace. The first step that fails ends the job."""

    name: str
    steps: tuple[str, ...]
    timeout_seconds: int
    source: RepositorySource | None = None
    working_directory: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Pattern, ...] = ()
    caches: tuple[Cache, ...] = ()
    image: str | None = None
    allow_network: bool = False
    trace: str | None = None

    job_type = STEPS
    least_isolation = None

    @property
    def requirements(self) -> list[str]:
        """The capabilities that a worker must offer."""
        return ["linux", IMAGE] if self.image else ["linux"]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical execution request."""
        return digest_of(vars(self))

    def columns(self) -> dict[str, Any]:
        return {
            "job_type": STEPS,
            **(self.source.columns() if self.source else {}),
            "working_directory": self.working_directory,
            "timeout_seconds": self.timeout_seconds,
            "allow_network": self.allow_network,
            "allow_exec": True,
            "spec": self._own(),
            "requirements": self.requirements,
            "payload_digest": self.digest,
        }

    def _own(self) -> dict[str, Any]:
        """The members without a column of their own."""
        return {
            "name": self.name,
            "steps": list(self.steps),
            "environment": dict(self.environment),
            "artifacts": [asdict(pattern) for pattern in self.artifacts],
            "caches": [asdict(cache) | {"paths": list(cache.paths)} for cache in self.caches],
            "image": self.image,
            "trace": self.trace,
        }


def steps_of(job: Job) -> dict[str, Any]:
    """Return the specification without its source.

    Members: name, working_directory, steps, environment, artifacts, caches, image, trace, timeout_seconds,
    allow_network.
    """
    return job.spec | {
        "working_directory": job.working_directory,
        "timeout_seconds": job.timeout_seconds,
        "allow_network": job.allow_network,
    }


def steps_from_job(job: Job) -> StepsSpec:
    """Return the specification that the columns of a job contain."""
    held = steps_of(job)
    return StepsSpec(
        **held
        | {
            "steps": tuple(held["steps"]),
            "artifacts": tuple(Pattern(**pattern) for pattern in held["artifacts"]),
            "caches": tuple(Cache(**cache | {"paths": tuple(cache["paths"])}) for cache in held["caches"]),
            "source": RepositorySource.of(job) if job.repo_url else None,
        }
    )


def serialize_steps(job: Job) -> dict[str, Any]:
    """Return the specification as it was submitted."""
    return steps_of(job) | {"source": _source(job)}


def serialize_steps_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease. `confined`: minimum isolation, egress and trace."""
    return {"source": _source(job), "steps": steps_of(job) | confined}


def _source(job: Job) -> dict[str, Any] | None:
    return source_of(job) if job.repo_url else None


def validate_step(step: str) -> str | None:
    """Return the error of a step, or None."""
    if not step.strip() or len(step) > MAX_STEP_BYTES or "\0" in step:
        return f"A line for the shell: 1 to {MAX_STEP_BYTES} characters, not blank, none of them NUL."
    return None


def validate_environment(environment: Mapping[str, str]) -> str | None:
    """Return the error of environment variables, or None."""
    if len(environment) > MAX_VARIABLES:
        return f"At most {MAX_VARIABLES} variables."
    if not all(VARIABLE.fullmatch(name) for name in environment):
        return "Names have letters, digits and '_' only, begin with no digit, and have at most 128 characters."
    if any(len(value) > MAX_VALUE_LENGTH or "\0" in value for value in environment.values()):
        return f"A value has at most {MAX_VALUE_LENGTH} characters, none of them NUL."
    return None


def validate_pattern(pattern: str) -> str | None:
    """Return the error of a pattern, or None. The worker that expands the pattern follows no link."""
    if not pattern or len(pattern) > 1024 or "\0" in pattern:
        return "A pattern of 1 to 1024 characters is needed."
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return "It must stay inside the working directory."
    return wrong_label(pattern)
