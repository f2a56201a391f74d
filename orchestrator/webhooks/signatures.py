"""Signatures of webhooks after Standard Webhooks 1.0.0, and their secrets.

A signature is the HMAC-SHA256 of `{id}.{timestamp}.{body}`. A secret is text for people: `whsec_` and 32 random bytes
in base64. The key is those bytes. The database has them sealed only (`orchestrator.core.sealing`).
"""

import base64
import binascii
import hmac
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

PREFIX: Final = "whsec_"
KEY_BYTES: Final = 32
MIN_KEY_BYTES: Final = 24  # of a secret that a verifier accepts
TOLERANCE_SECONDS: Final = 300  # between the timestamp of a message and the receiver's clock
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_VERSION: Final = "v1"


class SignatureInvalid(Exception):
    """A message was not signed with the secret, or too long ago. The text says which."""


def new_key() -> bytes:
    """Return a new random key."""
    return os.urandom(KEY_BYTES)


def secret_text(key: bytes) -> str:
    """Return the secret of a key, as it is displayed once."""
    return PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """Return the key of a secret.

    Raises:
        SignatureInvalid: The secret has another form, or fewer than 24 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise SignatureInvalid("The secret is not base64.") from None
    if len(key) < MIN_KEY_BYTES:
        raise SignatureInvalid(f"The secret has {len(key)} bytes; at least {MIN_KEY_BYTES} are needed.")
    return key


def signed_headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message, with one signature for each key.

    Args:
        keys: The current key first. During a rotation the former one follows.
        message_id: The id of the event, equal in every try. It contains no `.`.
        timestamp: The time of this try, in seconds since 1970.
        body: The bytes that are sent.
    """
    signatures = [f"{_VERSION},{_signature(key, message_id, str(timestamp), body)}" for key in keys]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float) -> None:
    """Check the signature of a message, as a receiver does.

    Args:
        secret: The secret of the webhook.
        headers: The headers of the request, with lower-case names.
        body: The bytes of its body, not parsed and written again.
        now: The receiver's clock, in seconds since 1970.

    Raises:
        SignatureInvalid: A header is missing, the timestamp differs by more than 5 minutes, or no signature is right.
    """
    key = key_of(secret)
    message_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id or not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 12):
        raise SignatureInvalid("A header is missing or malformed.")
    if abs(int(timestamp) - now) > TOLERANCE_SECONDS:
        raise SignatureInvalid(f"The timestamp differs from the clock by more than {TOLERANCE_SECONDS} seconds.")
    expected = _signature(key, message_id, timestamp, body)
    for entry in headers.get(SIGNATURE, "").split(" "):
        version, _, found = entry.partition(",")
        if version == _VERSION and hmac.compare_digest(found.encode(), expected.encode()):
            return
    raise SignatureInvalid("No signature matches.")


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = b"%s.%s.%s" % (message_id.encode(), timestamp.encode(), body)
    return base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
