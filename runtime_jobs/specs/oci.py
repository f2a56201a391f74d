"""Type `oci`: one image of this server's registry on a machine with a given hardware spec (document 002)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from runtime_jobs.models.jobs import Job
from runtime_jobs.specs.source import digest_of

OCI = "oci"

MAX_ENTRYPOINT = 64
MAX_CMD = 64
MAX_VARIABLES = 255
MAX_FILE_PATHS = 255
MAX_TIMEOUT_SECONDS = 2**31 - 1
MAX_ITERATIONS = 2**32 - 1
# The duration of an execution is added to the backdate of its report, and the sum must be a date.
LATEST_BACKDATE = datetime(9900, 1, 1, tzinfo=UTC)
AVERAGES = ("mean", "median")
FOLDS = ("min", "max", "mean", "median")
IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


@dataclass(frozen=True)
class OciSpec:
    """The job config of a runner, and the hardware spec on which it runs.

    Attributes:
        hardware_spec: The UUID of the hardware spec.
        least_isolation: The isolation that the hardware spec promises.
        registry: The URL of the registry that has the image.
        project: The UUID of the project, which is also the repository of the image.
        image_digest: The digest of the image's manifest.
        timeout_seconds: The time limit of all iterations together.
        image: The reference as it was submitted.
        entrypoint: Replaces the entrypoint of the image.
        cmd: Replaces the command of the image.
        env: Environment variables.
        file_paths: Files of the machine that are part of the output.
        build_time: Measure the build time.
        file_size: Measure the sizes of the files instead of reading them.
        average: The central tendency of the benchmark harness: one of `AVERAGES`.
        iterations: The number of iterations. Without it one.
        fold: The operation that combines the iterations: one of `FOLDS`.
        allow_failure: Continue after an iteration that fails.
        backdate: The start time of the report, RFC 3339 in UTC, at most `LATEST_BACKDATE`.
    """

    hardware_spec: str
    least_isolation: str
    registry: str
    project: str
    image_digest: str
    timeout_seconds: int
    image: str | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    file_paths: tuple[str, ...] | None = None
    build_time: bool | None = None
    file_size: bool | None = None
    average: str | None = None
    iterations: int | None = None
    fold: str | None = None
    allow_failure: bool | None = None
    backdate: str | None = None

    job_type = OCI
    source = None
    trace = None

    @property
    def requirements(self) -> list[str]:
        """The labels that a runner must offer: that of the hardware spec."""
        return [spec_label(self.hardware_spec)]

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical execution request."""
        return digest_of(vars(self))

    def config(self) -> dict[str, Any]:
        """Return the job config as the runner receives it. Members without a value are absent."""
        members = {_MEMBERS.get(name, name): value for name, value in vars(self).items() if name not in _NOT_IN_CONFIG}
        return {name: _as_json(value) for name, value in members.items() if value is not None}

    def columns(self) -> dict[str, Any]:
        return {
            "job_type": OCI,
            "timeout_seconds": self.timeout_seconds,
            "spec": {"spec": self.hardware_spec, "least_isolation": self.least_isolation, "config": self.config()},
            "requirements": self.requirements,
            "payload_digest": self.digest,
        }


_LABEL = "spec:"  # of a hardware spec among the requirements of jobs
_NOT_IN_CONFIG = frozenset({"hardware_spec", "least_isolation"})
# Members of the job config with another name than the attribute.
_MEMBERS = {"image_digest": "digest", "timeout_seconds": "timeout", "iterations": "iter"}
_ATTRIBUTES = {member: attribute for attribute, member in _MEMBERS.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def spec_label(hardware_spec: UUID | str) -> str:
    """Return the label by which jobs require a hardware spec and runners offer it."""
    return f"{_LABEL}{hardware_spec}"


def is_spec_label(label: str) -> bool:
    """Return whether a requirement is a hardware spec."""
    return label.startswith(_LABEL)


def spec_of_label(label: str) -> UUID | None:
    """Return the UUID of the hardware spec that a requirement names, or None: it is another requirement."""
    try:
        return UUID(label.removeprefix(_LABEL)) if is_spec_label(label) else None
    except ValueError:
        return None


def config_of(job: Job) -> dict[str, Any]:
    """Return the job config of an `oci` job, verbatim for its runner."""
    config: dict[str, Any] = job.spec["config"]
    return config


def spec_uuid_of(job: Job) -> UUID:
    """Return the UUID of the hardware spec of an `oci` job."""
    return UUID(job.spec["spec"])


def oci_from_job(job: Job) -> OciSpec:
    """Return the specification that the columns of a job contain."""
    members = {_ATTRIBUTES.get(name, name): value for name, value in config_of(job).items()}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in members.items()
    }
    return OciSpec(hardware_spec=job.spec["spec"], least_isolation=job.spec["least_isolation"], **values)


def serialize_oci(job: Job) -> dict[str, Any]:
    """Return the specification: the hardware spec and the job config."""
    return {"spec": job.spec["spec"], "config": config_of(job)}


def serialize_oci_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease. `confined`: minimum isolation, egress, trace, machine and pull token."""
    return {"source": None, "oci": serialize_oci(job) | confined}


def configured_oci() -> dict[str, int]:
    """Return the rules of this installation for `oci` jobs: no retry, no requeue, and the timeouts of runners.

    A runner that is silent for the heartbeat timeout has lost its job, whether or not it began to execute the job.
    """
    timeout = settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS
    return {
        "lease_ttl_seconds": timeout,
        "acknowledge_within_seconds": timeout,
        "heartbeat_interval_seconds": max(1, timeout // 3),
        "max_requeues": 0,
        "automatic_retries": 0,
        "late_result_seconds": settings.RUNNER_LATE_RESULT_SECONDS,
        "timeout_grace_seconds": settings.RUNNER_TIMEOUT_GRACE_SECONDS,
    }


def validate_variables(env: Mapping[str, str]) -> str | None:
    """Return the error of environment variables, or None."""
    if len(env) > MAX_VARIABLES:
        return f"At most {MAX_VARIABLES} variables are allowed."
    if any(not name or "=" in name or "\0" in name or "\0" in value for name, value in env.items()):
        return "A name is not empty and has no '='. Neither name nor value has NUL."
    return None
