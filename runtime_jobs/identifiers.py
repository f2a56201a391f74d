"""Public identifiers: a prefix for the kind, then a lower-case ULID (document 000: `rtj_01kkyg…`)."""

import hashlib
import re

from ulid import PureRandomPolicy, ULIDGenerator

# Not the default policy: it makes the ULIDs of one millisecond differ by exactly 1, and a lease id is a capability.
_generator = ULIDGenerator(policy=PureRandomPolicy())

ULID_PATTERN = "[0-7][0-9a-hjkmnp-tv-z]{25}"
ID_LENGTH = 30


def new_id(prefix: str) -> str:
    """Return an identifier such as `rtj_01kkygkagq0jk17bx6y1w8c3df`; `prefix` comes without the underscore."""
    return f"{prefix}_{str(_generator.generate()).lower()}"


def is_id(value: str, prefix: str) -> bool:
    """Return whether a value has the form of an identifier with this prefix."""
    return re.fullmatch(f"{prefix}_{ULID_PATTERN}", value) is not None


def new_job_id() -> str:
    """Return a new id for a job."""
    return new_id("rtj")


def new_lease_id() -> str:
    """Return a new id for a lease."""
    return new_id("rtl")


def new_worker_id() -> str:
    """Return a new id for a worker."""
    return new_id("wrk")


def new_event_id() -> str:
    """Return a new id for an event."""
    return new_id("evt")


def new_batch_id() -> str:
    """Return a new id for a batch."""
    return new_id("rtb")


def new_artifact_id() -> str:
    """Return a new id for an artifact."""
    return new_id("art")


def new_incident_id() -> str:
    """Return a new id for an incident."""
    return new_id("inc")


def fingerprint(secret: str) -> str:
    """Return 16 hex digits of the SHA-256 of a capability, by which logs and pages may name it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16]
