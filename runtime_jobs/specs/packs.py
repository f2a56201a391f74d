"""Type `pack-run`: a payload that names a registered version of a pack, whose plan is steps (document 004, section 5).

The plan is copied into the job when the job is admitted: a job has everything that its lease contains.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from runtime_jobs.models.jobs import Job
from runtime_jobs.models.packs import MAX_PACK_NAME_LENGTH, MAX_PACK_VERSION_LENGTH
from runtime_jobs.specs.payload import (
    MAX_INTEGER,
    PayloadSpec,
    canonical_payload,
    payload_digest,
    public_digest,
    serialize_payload_for_lease,
)
from runtime_jobs.specs.steps import MAX_VALUE_LENGTH, validate_environment

PACK_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_PACK_NAME_LENGTH - 1}}}")
PACK_VERSION: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{MAX_PACK_VERSION_LENGTH - 1}}}")
PLAN_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
INPUT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
INPUT_VARIABLE: Final = "INPUT_"  # begins the name of the environment variable of an input
MAX_INPUTS: Final = 64
MAX_PLAN_BYTES: Final = 256 << 10  # of the canonical form
MIN_CADENCE_SECONDS: Final = 10
MAX_CADENCE_SECONDS: Final = 300

# Members of a payload. Others are kept for the worker.
ID, VERSION, HASH, INPUTS, CADENCE = "packId", "packVersion", "planHash", "inputs", "heartbeatCadence"
DETECTION_SECONDS: Final = 2  # at least as long as the scheduler needs to find a lease that has expired
_OMITTED: Final[dict[str, Any]] = {"working_directory": ".", "environment": {}, "artifacts": [], "inputs": {}}
_NO_VALUE: Final = object()


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the plan's canonical form (RFC 8785), as hexadecimal digits."""
    return payload_digest(plan)


def input_variable(name: str) -> str:
    """Return the name of the environment variable in which the steps find an input."""
    return INPUT_VARIABLE + name.upper().replace("-", "_")


def value_error(value: Any) -> str | None:
    """Return what is wrong with the value of an input, or None. It becomes an environment variable."""
    if isinstance(value, str):
        is_valid = len(value) <= MAX_VALUE_LENGTH and "\0" not in value
        return None if is_valid else f"A text has at most {MAX_VALUE_LENGTH} characters, none of them NUL."
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) <= MAX_INTEGER):
        return None
    return "Must be a text, a whole number or a boolean. Send other values as a text."


def plan_errors(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what is wrong with a plan beyond the shape of its members, by the path of the member."""
    found = {
        "plan": _size_error(plan),
        "plan.environment": _environment_error(plan.get("environment") or {}),
        "plan.inputs": _declaration_error(plan.get("inputs") or {}),
    }
    return {path: [problem] for path, problem in found.items() if problem}


def _size_error(plan: Mapping[str, Any]) -> str | None:
    size = len(canonical_payload(plan))
    if size > MAX_PLAN_BYTES:
        return f"The plan has {size} bytes in its canonical form; at most {MAX_PLAN_BYTES} bytes are allowed."
    return None


def _environment_error(environment: Mapping[str, str]) -> str | None:
    if any(name.startswith(INPUT_VARIABLE) for name in environment):
        return f"Names that begin with {INPUT_VARIABLE} are those of inputs."
    return validate_environment(environment)


def _declaration_error(declared: Mapping[str, Any]) -> str | None:
    if len(declared) > MAX_INPUTS:
        return f"There are {len(declared)} inputs; at most {MAX_INPUTS} are allowed."
    if not all(INPUT_NAME.fullmatch(name) for name in declared):
        return f"Names of inputs must match {INPUT_NAME.pattern}."
    if len({input_variable(name) for name in declared}) < len(declared):
        return "The names of two inputs differ only in case, or in - and _. Their environment variable is the same."
    for name, terms in declared.items():
        if "default" in terms and terms.get("required"):
            return f"{name}: A required input has no default."
    return None


def reference_errors(payload: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the members of a payload that every pack run has."""
    errors = [
        f"{name}: This member is required and must match {pattern.pattern}."
        for name, pattern in ((ID, PACK_ID), (VERSION, PACK_VERSION))
        if not _is_text(payload.get(name), pattern)
    ]
    if payload.get(HASH) is not None and not _is_text(payload[HASH], PLAN_HASH):
        errors.append(f"{HASH}: Must match {PLAN_HASH.pattern}.")
    if not isinstance(payload.get(INPUTS) or {}, Mapping):
        errors.append(f"{INPUTS}: Must be a JSON object.")
    if payload.get(CADENCE) is not None and _cadence(payload) is None:
        bounds = f"{MIN_CADENCE_SECONDS} to {MAX_CADENCE_SECONDS}"
        errors.append(f"{CADENCE}: Must be a whole number of seconds from {bounds}.")
    return errors


def input_errors(plan: Mapping[str, Any], payload: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the inputs of a payload for this plan."""
    declared, sent = plan.get("inputs") or {}, payload.get(INPUTS) or {}
    errors = [f"{INPUTS}: The plan declares no input {name[:100]!r}." for name in sent if name not in declared]
    for name, terms in declared.items():
        value = sent.get(name, _NO_VALUE)
        if value is _NO_VALUE and terms.get("required"):
            errors.append(f"{INPUTS}: {name} is required.")
        elif value is not _NO_VALUE and (problem := value_error(value)):
            errors.append(f"{INPUTS}: {name}: {problem}")
    return errors


def inputs_of(plan: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a pack run: those of the payload, else the defaults of the plan."""
    defaults = {name: terms["default"] for name, terms in (plan.get("inputs") or {}).items() if "default" in terms}
    return defaults | dict(payload.get(INPUTS) or {})


def runnable_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a registered plan with the members that it omits."""
    complete = _OMITTED | {"name": None, "allow_network": False} | dict(plan)
    complete["artifacts"] = [{"type": "file"} | dict(pattern) for pattern in complete["artifacts"]]
    return complete


def heartbeat_terms(spec: PayloadSpec) -> dict[str, int]:
    """Return the durations that a pack run names itself: a dead worker is detected within two heartbeats (section 5.2).

    The lease is shorter than that by the longest wait for a round of the scheduler.
    """
    seconds = _cadence(spec.payload)
    if seconds is None:
        return {}
    return {"heartbeat_interval_seconds": seconds, "lease_ttl_seconds": 2 * seconds - DETECTION_SECONDS}


def serialize_pack_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease, with plan and inputs. `confined`: minimum isolation, egress and trace.

    A job that was queued before packs were registered has no plan.
    """
    members = serialize_payload_for_lease(job, confined)
    plan = job.spec.get("plan")
    if plan is not None:
        members["request"] |= {
            "plan": runnable_plan(plan),
            "plan_hash": public_digest(plan_hash(plan)),
            "inputs": inputs_of(plan, job.spec["payload"]),
            "allow_network": bool(job.allow_network),
        }
    return members


def _cadence(payload: Mapping[str, Any]) -> int | None:
    seconds = payload.get(CADENCE)
    is_valid = type(seconds) is int and MIN_CADENCE_SECONDS <= seconds <= MAX_CADENCE_SECONDS
    return seconds if is_valid else None


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
