"""The manifest of an ended job: its inputs, the environment, and its outputs, by which two executions are compared.

Pure functions. What differs from one execution to the next is left out of the outputs, by the tables of this module.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtime_jobs.models.jobs import Job
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.specs.payload import payload_digest, public_digest
from runtime_jobs.states import FailureClass, JobState

SCHEMA_VERSION: Final = "manifest.v1"
MAX_MEMBER_BYTES: Final = 64 << 10  # of one member of a run in a manifest; a larger one is replaced by its digest


@dataclass(frozen=True)
class ProducedFile:
    """A stored artifact of a job. `sha256`: in hexadecimal, None if the server has not seen the bytes."""

    name: str
    byte_count: int
    sha256: str | None


@dataclass(frozen=True)
class JobProducts:
    """The rows of a job, beside its own one, that a manifest needs.

    Attributes:
        files: The stored artifacts.
        references: Addresses of artifacts elsewhere, which the server never fetches.
        run: The `run.v1` document, for job types that have one.
        worker_id: The worker of the newest lease.
        log_bytes: The length of the log.
        log_sha256: The digest of the log, None if it was not computed.
    """

    files: tuple[ProducedFile, ...] = ()
    references: tuple[str, ...] = ()
    run: Mapping[str, Any] | None = None
    worker_id: str | None = None
    log_bytes: int = 0
    log_sha256: str | None = None


@dataclass(frozen=True)
class RunRule:
    """A member of a `run.v1` document that a manifest leaves out. `*` is each item of a list."""

    path: tuple[str, ...]
    why: str


_IDENTITY = "each execution has its own"
_TIME = "the time passes"
_PROCESS = "the kernel numbers processes as they come"
_SCHEDULING = "waiting and polling depend on the scheduling of processes"
RUN_RULES: Final = (
    RunRule(("payload_sha256",), "the digest of all members"),
    RunRule(("trace",), "the trace contains pids and times"),
    RunRule(("metadata", "job_id"), _IDENTITY),
    RunRule(("metadata", "retry_of_job_id"), _IDENTITY),
    RunRule(("metadata", "worker_id"), _IDENTITY),
    RunRule(("metadata", "trigger_actor"), _IDENTITY),
    RunRule(("metadata", "started_at"), _TIME),
    RunRule(("metadata", "finished_at"), _TIME),
    RunRule(("metadata", "sandbox", "tool_version"), "part of the environment"),
    RunRule(("summary", "timestamp"), _TIME),
    RunRule(("summary", "duration_ms"), _TIME),
    RunRule(("summary", "total_syscalls"), _SCHEDULING),
    RunRule(("summary", "unique_syscalls"), _SCHEDULING),
    RunRule(("counts", "trace_lines"), _SCHEDULING),
    RunRule(("processes", "items", "*", "pid"), _PROCESS),
    RunRule(("processes", "items", "*", "parent_pid"), _PROCESS),
    RunRule(("processes", "items", "*", "first_seen"), _TIME),
    RunRule(("processes", "items", "*", "ended_at"), _TIME),
    RunRule(("files", "items", "*", "count"), _SCHEDULING),
    RunRule(("files", "items", "*", "failed"), _SCHEDULING),
    RunRule(("network_attempts", "items", "*", "count"), _SCHEDULING),
    RunRule(("network_attempts", "items", "*", "bytes_sent"), _SCHEDULING),
    RunRule(("network_attempts", "items", "*", "bytes_received"), _SCHEDULING),
    RunRule(("suspicious_activity", "items", "*", "count"), _SCHEDULING),
    RunRule(("resources", "peaks"), _SCHEDULING),
    RunRule(("resources", "output"), "logs decide nothing"),
)
# Names within the texts of a run that a program makes up: the expression, and what replaces a match.
TEMPORARY_NAMES: Final = (
    (re.compile(r"(/proc/)\d+"), r"\1*"),  # pids
    (re.compile(r"(?<![\w.])(/tmp/|/var/tmp/|/dev/shm/)[^/\s'\":]+"), r"\1*"),
    (re.compile(r"((?:pipe|socket|anon_inode):\[?)\d+"), r"\1*"),  # inodes of the kernel
)
_TRUNCATED_LISTS = ("processes", "files", "network_attempts", "suspicious_activity")

# Failures of the job itself. Any other end says nothing about what the job produces.
_CONCLUSIVE: Final = (FailureClass.JOB,)


@dataclass
class _Outputs:
    """The outputs of a job, and why they are not conclusive."""

    members: dict[str, Any]
    inconclusive: list[str] = field(default_factory=list)


def reported_manifest(job: Job, products: JobProducts) -> dict[str, Any]:
    """Return the manifest of a job whose worker reports its outputs: exit codes, artifacts, `outputs`.

    Args:
        job: A job that has ended.
        products: The rows that belong to it.
    """
    return _manifest(job, products, _reported_outputs(job, products))


def run_manifest(job: Job, products: JobProducts) -> dict[str, Any]:
    """Return the manifest of a job with a run: also the run, without what `RUN_RULES` leave out.

    Args:
        job: A job that has ended.
        products: The rows that belong to it.
    """
    outputs = _reported_outputs(job, products)
    if products.run is not None:
        outputs.members["run"] = stable_run(products.run)
    elif job.state == JobState.SUCCEEDED:
        outputs.inconclusive.append("Its run is not stored here.")
    return _manifest(job, products, outputs)


def _manifest(job: Job, products: JobProducts, outputs: _Outputs) -> dict[str, Any]:
    result = job.result or {}
    reported = result.get("environment") or {}
    tool_version = ((products.run or {}).get("metadata") or {}).get("sandbox", {}).get("tool_version")
    return {
        "schemaVersion": SCHEMA_VERSION,
        "jobType": job.job_type,
        "inputs": _inputs(job),
        "environment": {
            "engine": reported.get("engine"),
            "versions": reported.get("versions", {}),
            "digests": reported.get("digests", {}),
            "sandboxVersion": tool_version,
            "isolation": job.least_isolation,
            "network": bool(job.allow_network),
            "workerId": products.worker_id,
        },
        "outputs": outputs.members,
        "inconclusive": outputs.inconclusive,
        "logs": {"bytes": products.log_bytes, "digest": _prefixed(products.log_sha256)},
    }


def _inputs(job: Job) -> dict[str, Any]:
    inputs = {
        "payloadDigest": public_digest(job.payload_digest),
        "cursors": job.spec.get("cursors", {}),
        "timeoutSeconds": job.timeout_seconds,
    }
    plan = job.spec.get("plan")
    return inputs if plan is None else inputs | {"planHash": public_digest(payload_digest(plan))}


def _reported_outputs(job: Job, products: JobProducts) -> _Outputs:
    result = job.result or {}
    outputs = _Outputs(
        {
            "state": str(job.state),
            "exitCode": job.exit_code,
            "failureReason": None if job.failure_reason is None else str(job.failure_reason),
            "verdict": result.get("verdict"),
            "outputs": result.get("outputs"),
            "cursors": result.get("cursors", {}),
            "steps": [step.get("exit_code") for step in result.get("steps", ())],
            "artifacts": {},
        }
    )
    _add_end(job, outputs)
    _add_artifacts(result, products, outputs)
    return outputs


def _add_end(job: Job, outputs: _Outputs) -> None:
    if job.state == JobState.CANCELED:
        outputs.inconclusive.append("It was canceled.")
    elif job.state == JobState.FAILED and job.failure_class not in _CONCLUSIVE:
        outputs.inconclusive.append(f"It failed for a reason outside of the job: {job.failure_reason}.")


def _add_artifacts(result: Mapping[str, Any], products: JobProducts, outputs: _Outputs) -> None:
    """Add the artifacts by name: those that the worker reports, and those that the server stores."""
    found: dict[str, dict[str, Any]] = {}
    for described in result.get("files", ()):
        found[described["path"]] = {"digest": _prefixed(described["sha256"]), "bytes": described["size_bytes"]}
    for file in products.files:
        if file.sha256 is not None:
            found[file.name] = {"digest": _prefixed(file.sha256), "bytes": file.byte_count}
        elif file.name not in found:
            found[file.name] = {"digest": None, "bytes": file.byte_count}
            outputs.inconclusive.append(f"The artifact {file.name} has no digest.")
    outputs.members["artifacts"] = found
    if result.get("files_omitted"):
        outputs.inconclusive.append(f"The worker has left out {result['files_omitted']} artifacts.")
    if products.references:
        outputs.inconclusive.append(f"{len(products.references)} artifacts are stored elsewhere, without a digest.")


def stable_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `run.v1` document without what differs from one execution to the next.

    Lists are sorted. The items of a truncated list are left out: which ones it has depends on numbers that differ.
    """
    stable: dict[str, Any] = json.loads(json.dumps(run))
    for rule in RUN_RULES:
        _remove(stable, rule.path)
    for name in _TRUNCATED_LISTS:
        listed = stable.get(name)
        if isinstance(listed, dict) and isinstance(listed.get("items"), list):
            items = {_encoded(_renamed(item)) for item in listed["items"]}
            listed["items"] = [] if listed.get("truncated") else [json.loads(item) for item in sorted(items)]
    return {name: _bounded(value) for name, value in stable.items()}


def _remove(value: Any, path: tuple[str, ...]) -> None:
    first, *rest = path
    if first == "*":
        for item in value if isinstance(value, list) else ():
            _remove(item, tuple(rest))
    elif isinstance(value, dict) and first in value:
        if rest:
            _remove(value[first], tuple(rest))
        else:
            del value[first]


def _renamed(value: Any) -> Any:
    """Return a value in which temporary names are replaced."""
    if isinstance(value, dict):
        return {name: _renamed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner) for inner in value]
    if isinstance(value, str):
        for pattern, replacement in TEMPORARY_NAMES:
            value = pattern.sub(replacement, value)
    return value


def _bounded(value: Any) -> Any:
    text = _encoded(value)
    if len(text) <= MAX_MEMBER_BYTES:
        return value
    return {"digest": _prefixed(hashlib.sha256(text.encode()).hexdigest()), "bytes": len(text)}


def _encoded(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _prefixed(digest: str | None) -> str | None:
    return None if digest is None else public_digest(digest)


# --- what is not fixed ------------------------------------------------------------------------------------------------

NETWORK: Final = "It had access to the network."
CACHES: Final = "It restores caches, which other jobs change."
UNTRACED: Final = "What it read and wrote was not recorded: its trace is"


def unpinned_image(image: str | None) -> tuple[str, ...]:
    """Return why an image is not fixed. A tag may name another image tomorrow, a digest never does."""
    if not image or "@sha256:" in image:
        return ()
    return (f"Its image {image} is named by a tag, and not by a digest.",)


def unpinned_execution(job: Job) -> tuple[str, ...]:
    """Return why a job of type `runtime` may have another outcome. Its commit is named by a digest."""
    untraced = (f"{UNTRACED} {job.trace}.",) if job.trace != JobTrace.FULL else ()
    return (*((NETWORK,) if job.allow_network else ()), *untraced)


def unpinned_steps(job: Job) -> tuple[str, ...]:
    """Return why a job with steps may have another outcome: network, an image without a digest, caches."""
    return _unpinned_plan(job.allow_network, job.spec)


def unpinned_payload(job: Job) -> tuple[str, ...]:
    """Return why a job with a payload may have another outcome.

    Only the worker knows what a payload means. What the server knows is the plan of a pack run, if its row has one.
    """
    plan = job.spec.get("plan") or {}
    return _unpinned_plan(job.allow_network or plan.get("allow_network"), plan)


def _unpinned_plan(allow_network: bool | None, plan: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *((NETWORK,) if allow_network else ()),
        *unpinned_image(plan.get("image")),
        *((CACHES,) if plan.get("caches") else ()),
    )
