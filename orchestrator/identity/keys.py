"""Keys of identity tokens: created, published, used for signatures, withdrawn.

What a key is used for follows from the times in the rows alone. A new key is published for `PUBLISHED_BEFORE` before
it signs, and a replaced one for `PUBLISHED_AFTER`, in which the last tokens that it has signed expire.
"""

import base64
import hashlib
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from leases.advisory_locks import IDENTITY_KEYS, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.sealing import seal
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.models import IdentityKey

PURPOSE: Final = "identity-key"  # of the sealed private keys
PUBLISHED_BEFORE: Final = timedelta(hours=24)  # longer than verifiers cache the set
PUBLISHED_AFTER: Final = timedelta(hours=1)  # longer than a token is valid
_BITS: Final = 2048
_EXPONENT: Final = 65537


@operation
def ensure_identity_key(_: UnitOfWork, *, now: datetime | None = None) -> None:
    """Create the first key, which signs at once: no verifier has read a set without it. Later calls do nothing."""
    advisory_xact_lock(IDENTITY_KEYS, 0)
    if not IdentityKey.objects.exists():
        created_at = now or database_now()
        _create(created_at, created_at)


@operation
def rotate_identity_key(
    _: UnitOfWork,
    *,
    cause: Cause,
    is_urgent: bool = False,
    older_than: timedelta | None = None,
) -> IdentityKey | None:
    """Create a key that replaces the current one.

    Args:
        is_urgent: The current key is known to others: withdraw all keys now and sign with the new one at once. A
            verifier that has cached the former set refuses new tokens until it reads the set again.
        older_than: Do nothing unless the newest key is older.

    Returns:
        The new key, or None if the newest one is young enough.
    """
    advisory_xact_lock(IDENTITY_KEYS, 0)
    created_at = cause.now or database_now()
    newest = IdentityKey.objects.order_by("-pk").first()
    if older_than is not None and newest is not None and created_at - newest.created_at < older_than:
        return None
    if is_urgent:
        IdentityKey.objects.all().delete()
    is_first = is_urgent or newest is None
    key = _create(created_at, created_at if is_first else created_at + PUBLISHED_BEFORE)
    _delete_withdrawn(created_at)
    record_operator_event(
        "identity_key.rotated",
        target=f"identity_key:{key.kid}",
        cause=cause.at(created_at),
        after={"signs_from": key.signs_from.isoformat(), "is_urgent": is_urgent},
    )
    return key


def signing_key(keys: list[IdentityKey], now: datetime) -> IdentityKey | None:
    """Return the key that signs at a time: the newest one whose time has come. None: there is no key."""
    ready = [key for key in keys if key.signs_from <= now]
    return max(ready, key=lambda key: (key.signs_from, key.pk), default=None)


def published_keys(keys: list[IdentityKey], now: datetime) -> list[IdentityKey]:
    """Return the keys of the published set at a time, the newest one first."""
    current = signing_key(keys, now)
    if current is None:
        return []
    is_recent = now - current.signs_from < PUBLISHED_AFTER
    replaced = signing_key([key for key in keys if key.pk != current.pk], now) if is_recent else None
    future = [key for key in keys if key.signs_from > now]
    return [*sorted(future, key=lambda key: -key.pk), current, *([replaced] if replaced else [])]


def _create(created_at: datetime, signs_from: datetime) -> IdentityKey:
    private = generate_private_key(_EXPONENT, _BITS)
    jwk = _public_jwk(private)
    plain = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return IdentityKey.objects.create(
        kid=jwk["kid"],
        sealed=seal(PURPOSE, plain, context=jwk["kid"]),
        public_jwk=jwk,
        created_at=created_at,
        signs_from=signs_from,
    )


def _delete_withdrawn(now: datetime) -> None:
    keys = list(IdentityKey.objects.all())
    kept = {key.pk for key in published_keys(keys, now)}
    IdentityKey.objects.filter(pk__in=[key.pk for key in keys if key.pk not in kept]).delete()


def _public_jwk(private: RSAPrivateKey) -> dict[str, Any]:
    public: RSAPublicKey = private.public_key()
    numbers = public.public_numbers()
    modulus, exponent = _number(numbers.n), _number(numbers.e)
    # RFC 7638: the members in the order of their names, without blanks.
    thumbprint = hashlib.sha256(f'{{"e":"{exponent}","kty":"RSA","n":"{modulus}"}}'.encode()).digest()
    return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _encoded(thumbprint), "n": modulus, "e": exponent}


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
