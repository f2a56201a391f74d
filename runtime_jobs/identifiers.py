"""Public identifiers: a prefix for the kind, then a lower-case ULID (document 000: `rtj_01kkyg…`).

Protocols that name resources by UUID use the same 128 bits: `uuid_of` and `public_id_of` are the inverse of each other.
"""

import hashlib
import os
import re
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Two digits of Crockford's base 32 for each number of ten bits.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_RANDOM_BYTES = 10
# To the digits of `int(text, 32)`.
_BASE_32 = str.maketrans(_DIGITS, "0123456789abcdefghijklmnopqrstuv")
_UUID_VERSION = 7 << 76  # RFC 9562: the time in milliseconds, then random bits
_UUID_VARIANT = 2 << 62
_UUID_RESERVED = 15 << 76 | 3 << 62

ULID_PATTERN = "[0-7][0-9a-hjkmnp-tv-z]{25}"
ID_LENGTH = 30


def new_id(prefix: str) -> str:
    """Return an identifier such as `rtj_01kkygkagq0jk17bx6y1w8c3df`; `prefix` comes without the underscore."""
    return new_ids(prefix, 1)[0]


def new_ids(prefix: str, count: int) -> list[str]:
    """Return identifiers of the same millisecond.

    All 80 bits after the time are random: a lease id is a capability, so two of one millisecond must not be neighbors.
    Written here because the generator of the package `ulid` takes ten times as long, and a claim of 64 jobs needs 192.
    """
    head = _encode_head(prefix, time.time_ns() // 1_000_000)
    random = os.urandom(_RANDOM_BYTES * count)
    return [
        head + _encode_random(random[begin : begin + _RANDOM_BYTES]) for begin in range(0, len(random), _RANDOM_BYTES)
    ]


def derived_id(prefix: str, *, made_at: datetime, entropy: bytes) -> str:
    """Return the identifier of this time and these 10 bytes, which must be unpredictable.

    Args:
        prefix: The prefix without the underscore.
        made_at: The time, of which the milliseconds count.
        entropy: The 80 bits after the time.
    """
    return _encode_head(prefix, (made_at - _EPOCH) // timedelta(milliseconds=1)) + _encode_random(entropy)


def _encode_head(prefix: str, milliseconds: int) -> str:
    time_part = "".join([_PAIRS[milliseconds >> shift & 1023] for shift in (40, 30, 20, 10, 0)])
    return f"{prefix}_{time_part}"


def _encode_random(random: bytes) -> str:
    pairs, number = _PAIRS, int.from_bytes(random)
    return (
        pairs[number >> 70]
        + pairs[number >> 60 & 1023]
        + pairs[number >> 50 & 1023]
        + pairs[number >> 40 & 1023]
        + pairs[number >> 30 & 1023]
        + pairs[number >> 20 & 1023]
        + pairs[number >> 10 & 1023]
        + pairs[number & 1023]
    )


def uuid_of(public_id: str) -> UUID:
    """Return the 128 bits of the ULID in an identifier as a UUID; `public_id_of` is the inverse."""
    return UUID(int=int(public_id.rpartition("_")[2].translate(_BASE_32), 32))


def public_id_of(prefix: str, uuid: UUID) -> str:
    """Return the identifier with these 128 bits. Every UUID has one, of any version.

    Args:
        prefix: The prefix without the underscore.
        uuid: The UUID.
    """
    number = uuid.int
    return f"{prefix}_" + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def new_uuid() -> UUID:
    """Return a new UUID of version 7, for rows without a ULID: the time in milliseconds, then 74 random bits."""
    number = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(_RANDOM_BYTES))
    return UUID(int=number & ~_UUID_RESERVED | _UUID_VERSION | _UUID_VARIANT)


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


def new_webhook_id() -> str:
    """Return a new id for an outgoing webhook."""
    return new_id("whk")


def new_delivery_id() -> str:
    """Return a new id for a delivery to a webhook or by mail."""
    return new_id("dlv")


def new_rule_id() -> str:
    """Return a new id for a notification rule."""
    return new_id("nrl")


def new_schedule_id() -> str:
    """Return a new id for a schedule."""
    return new_id("sch")


def new_bulk_action_id() -> str:
    """Return a new id for a bulk action."""
    return new_id("blk")


def fingerprint(secret: str) -> str:
    """Return 16 hex digits of the SHA-256 of a capability, by which logs and pages may name it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:16]
