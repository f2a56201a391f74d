"""The keys that sign evidence: created, used, retired.

The newest key that is not retired signs. Old ones verify for ever. The private half is a file of mode 0600 in
SIGNING_KEY_DIR, or SIGNING_KEY (then usually a mounted secret, SIGNING_KEY_FILE); the public half is a row.
"""

import os
import secrets
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from django.conf import settings
from django.db import transaction

from leases.advisory_locks import SIGNING_KEYS, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.evidence.dsse import sealed_envelope
from orchestrator.evidence.models import SigningKey
from orchestrator.evidence.public_keys import key_id, public_key_pem, read_public_key
from runtime_jobs.db_time import database_now
from runtime_jobs.events import SYSTEM, Actor


class SigningKeyError(Exception):
    """No signature is possible: the private key is missing, readable by others, or retired."""


def sign(payload_type: str, payload: bytes) -> dict[str, Any]:
    """Return the DSSE envelope of a payload, signed by the newest key. The first call of an installation creates it.

    Args:
        payload_type: The media type of the payload.
        payload: The bytes to sign, as they are.

    Raises:
        SigningKeyError: This machine has no private key that may sign.
    """
    return sealed_envelope(payload_type, payload, _current_private_key())


def public_keys() -> list[Ed25519PublicKey]:
    """Return all keys that have ever signed here, the newest one first."""
    return [read_public_key(row.public_pem) for row in SigningKey.objects.order_by("-created_at", "-pk")]


def create_signing_key(*, actor: Actor, reason: str = "", now: datetime | None = None) -> SigningKey:
    """Create a key. It signs from now on; the former one is not retired, and signs only if this one is.

    Args:
        actor: The operator.
        reason: Recorded in the audit log.

    Raises:
        SigningKeyError: The key of this installation is SIGNING_KEY, so a file would have no effect.
    """
    if settings.SIGNING_KEY:
        raise SigningKeyError("SIGNING_KEY is set and signs. Set it to another key instead.")
    with transaction.atomic():
        advisory_xact_lock(SIGNING_KEYS, 0)
        return _create(actor, reason, now or database_now())


def retire_signing_key(
    identifier: str,
    *,
    cause: Cause,
) -> SigningKey:
    """Stop a key from signing. What it has signed stays valid. A second call changes nothing.

    Args:
        identifier: The key id, or its first digits if no other key has them.

    Raises:
        SigningKeyError: No key, or more than one, has this id.
    """
    with transaction.atomic():
        advisory_xact_lock(SIGNING_KEYS, 0)
        found = list(SigningKey.objects.filter(key_id__startswith=identifier)[:2]) if identifier else []
        if len(found) != 1:
            count = "No key" if not found else "More than one key"
            raise SigningKeyError(f"{count} has an id that begins with {identifier!r}.")
        key = found[0]
        if key.retired_at is None:
            key.retired_at = cause.now or database_now()
            key.save(update_fields=["retired_at"])
            _record(
                "signing_key.retired",
                key,
                cause=cause,
                now=key.retired_at,
            )
        return key


def has_private_key(key: SigningKey) -> bool:
    """Return whether this machine has the private half of a key."""
    if settings.SIGNING_KEY:
        return key_id(_parse(settings.SIGNING_KEY, "SIGNING_KEY").public_key()) == key.key_id
    return _path(key.key_id).is_file()


def _current_private_key() -> Ed25519PrivateKey:
    if settings.SIGNING_KEY:
        return _key_of_setting()
    keys = list(SigningKey.objects.order_by("-created_at", "-pk"))
    if not keys:
        with transaction.atomic():
            advisory_xact_lock(SIGNING_KEYS, 0)
            first = SigningKey.objects.order_by("-created_at", "-pk").first()
            keys = [first or _create(SYSTEM, "the first signature needs a key", database_now())]
    for key in keys:
        if key.retired_at is None and has_private_key(key):
            return _read_private_key(key.key_id)
    text = f"No key that is not retired has its private half in {settings.SIGNING_KEY_DIR}."
    raise SigningKeyError(f"{text} Copy the file from the machine that has it, or execute `manage.py signingkey new`.")


def _key_of_setting() -> Ed25519PrivateKey:
    """Return the key of SIGNING_KEY. Its first use publishes its public half."""
    private = _parse(settings.SIGNING_KEY, "SIGNING_KEY")
    row = SigningKey.objects.filter(key_id=key_id(private.public_key())).first()
    if row is None:
        with transaction.atomic():
            advisory_xact_lock(SIGNING_KEYS, 0)
            row = SigningKey.objects.filter(key_id=key_id(private.public_key())).first()
            row = row or _publish(private, SYSTEM, "SIGNING_KEY is new", database_now())
    if row.retired_at is not None:
        raise SigningKeyError(f"The key of SIGNING_KEY, {row.key_id}, is retired. Set another one.")
    return private


def _create(actor: Actor, reason: str, now: datetime) -> SigningKey:
    """Create the file first: a row without its private half would be of no use, a file without a row does no harm."""
    private = Ed25519PrivateKey.generate()
    path = _path(key_id(private.public_key()))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.stem}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 a descriptor with its mode
        file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return _publish(private, actor, reason, now)


def _publish(private: Ed25519PrivateKey, actor: Actor, reason: str, now: datetime) -> SigningKey:
    public = private.public_key()
    key = SigningKey.objects.create(key_id=key_id(public), public_pem=public_key_pem(public), created_at=now)
    _record("signing_key.created", key, cause=Cause(actor, reason), now=now)
    return key


def _record(
    action: str,
    key: SigningKey,
    *,
    cause: Cause,
    now: datetime,
) -> None:
    target = f"signing_key:{key.key_id}"
    record_operator_event(action, target=target, cause=cause.at(now))


def _path(identifier: str) -> Path:
    return Path(settings.SIGNING_KEY_DIR, f"{identifier}.pem")


def _read_private_key(identifier: str) -> Ed25519PrivateKey:
    path = _path(identifier)
    try:
        if path.stat().st_mode & 0o077:
            raise SigningKeyError(f"Other accounts can read {path}. Its mode must be 0600.")
        private = _parse(path.read_text(), str(path))
    except OSError as error:
        raise SigningKeyError(f"Cannot read {path}: {error.strerror}.") from None
    if key_id(private.public_key()) != identifier:
        raise SigningKeyError(f"{path} has another key than its name.")
    return private


def _parse(pem: str, name: str) -> Ed25519PrivateKey:
    try:
        private = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SigningKeyError(f"{name} is not the PEM of a private key without a password.") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningKeyError(f"{name} is not a key of the algorithm Ed25519.")
    return private
