"""Types with a payload (document 004): a JSON object whose meaning only the worker knows."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import rfc8785

from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models.jobs import Job

SCAN, POLICY_RUN, EXPORT, PACK_RUN, ADVISORY_SYNC = "scan", "policy-run", "export", "pack-run", "advisory-sync"
PAYLOAD_TYPES = (SCAN, POLICY_RUN, EXPORT, PACK_RUN, ADVISORY_SYNC)
MAX_PAYLOAD_BYTES = 256 * 1024  # of the canonical form
MAX_CURSORS = 32
CURSOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_CURSOR_LENGTH = 1024
MAX_INTEGER = 2**53 - 1  # RFC 8785 has doubles only
DIGEST_PREFIX = "sha256:"


@dataclass(frozen=True)
class PayloadSpec:
    """A payload for a worker, and from where each feed is read.

    Attributes:
        job_type: One of `PAYLOAD_TYPES`.
        payload: A JSON object, within the bounds of `validate_payload`.
        timeout_seconds: The time limit of the job.
        cursors: The position in each feed from which the job reads, by the name of the feed. Opaque.
        requested_at: When the client says that the job was requested, RFC 3339, or None. Displayed and not used.
        plan: The plan of a pack run, which the admission copies from the version of the pack. None before, and for all
            other types.
    """

    job_type: str
    payload: Mapping[str, Any]
    timeout_seconds: int
    cursors: Mapping[str, str] = field(default_factory=dict)
    requested_at: str | None = None
    plan: Mapping[str, Any] | None = None

    source = None
    least_isolation = None
    trace = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the payload's canonical form (RFC 8785)."""
        return payload_digest(self.payload)

    def columns(self) -> dict[str, Any]:
        spec = {
            "payload": dict(self.payload),
            "cursors": dict(self.cursors),
            "requested_at": self.requested_at,
        }
        return {
            "job_type": self.job_type,
            "timeout_seconds": self.timeout_seconds,
            "spec": spec if self.plan is None else spec | {"plan": dict(self.plan)},
            "payload_digest": self.digest,
        }


def canonical_payload(payload: Mapping[str, Any]) -> bytes:
    """Return the canonical form of a payload (RFC 8785).

    The database stores numbers as decimals, and `1e21` is read as a whole number. It is a double again here.
    """
    return rfc8785.dumps(_with_doubles(payload))


def _with_doubles(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_doubles(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_doubles(inner) for inner in value]
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return float(value)
    return value


def payload_digest(payload: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical form, as hexadecimal digits."""
    return hashlib.sha256(canonical_payload(payload)).hexdigest()


def validate_payload(payload: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a parsed payload, or None."""
    if _has_inexact_integer(payload):
        return f"Whole numbers must be between -{MAX_INTEGER} and {MAX_INTEGER}. Send a larger one as a string."
    size = len(canonical_payload(payload))
    if size > MAX_PAYLOAD_BYTES:
        return f"The payload has {size} bytes in its canonical form; at most {MAX_PAYLOAD_BYTES} bytes are allowed."
    return None


def _has_inexact_integer(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_inexact_integer, value.values()))
    if isinstance(value, list):
        return any(map(_has_inexact_integer, value))
    return isinstance(value, int) and abs(value) > MAX_INTEGER


def validate_cursors(cursors: Mapping[str, str]) -> str | None:
    """Return what is wrong with the names or the number of cursors, or None."""
    if len(cursors) > MAX_CURSORS:
        return f"There are {len(cursors)} cursors; at most {MAX_CURSORS} are allowed."
    wrong = next((name for name in cursors if not CURSOR_NAME.fullmatch(name)), None)
    if wrong is not None:
        return f"Names of cursors must match {CURSOR_NAME.pattern}."
    return None


def payload_from_job(job: Job) -> PayloadSpec:
    """Return the specification that the columns of a job contain."""
    return PayloadSpec(
        job_type=job.job_type,
        payload=job.spec["payload"],
        timeout_seconds=job.timeout_seconds or 0,
        cursors=job.spec["cursors"],
        requested_at=job.spec["requested_at"],
        plan=job.spec.get("plan"),
    )


def serialize_payload(job: Job) -> dict[str, Any]:
    """Return the specification as it was submitted."""
    return {
        "payload": job.spec["payload"],
        "cursors": job.spec["cursors"],
        "timeout_seconds": job.timeout_seconds,
    }


def serialize_payload_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease. `confined`: minimum isolation, egress and trace.

    `sealed` obliges the worker to execute the job without network: what it does with a payload is its own matter.
    """
    names = {
        "run_id": str(uuid_of(job.root_job_ulid)),
        "payload_digest": public_digest(job.payload_digest),
        "sealed": job.spec.get("sealed", False),
    }
    return {"source": None, "request": serialize_payload(job) | names | confined}


def public_digest(digest: str) -> str:
    """Return a digest with the name of its algorithm, as document 004 has it."""
    return f"{DIGEST_PREFIX}{digest}"
