"""Signed envelopes: DSSE 1.0.0 with Ed25519. Imports no Django, because the verifier of bundles needs none.

The signature covers the pre-authentication encoding of type and payload, never the payload alone: a payload that was
signed for one type is no payload of another.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from orchestrator.evidence.public_keys import key_id

MAX_SIGNATURES: Final = 16


class EnvelopeRefused(Exception):
    """An envelope has another shape, another type, or no valid signature of the named keys."""


def pre_auth_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: both parts with their lengths."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sealed_envelope(payload_type: str, payload: bytes, private_key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the envelope of a payload with its signature. The same arguments give the same envelope."""
    signature = base64.b64encode(private_key.sign(pre_auth_encoding(payload_type, payload))).decode()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": signatures_of(key_id(private_key.public_key()), signature),
    }


def signatures_of(name: str, signature: str) -> list[dict[str, str]]:
    """Return a signature with the id of its key, and again without one.

    DSSE permits verifiers to skip signatures under ids that they do not know, and names no rule for ids: each library
    computes another one. securesystemslib for Python finds its own id only, all others try a signature without one.
    """
    return [{"keyid": name, "sig": signature}, {"keyid": "", "sig": signature}]


def verify(
    envelope: Mapping[str, Any], public_keys: Iterable[Ed25519PublicKey], *, payload_type: str | None = None
) -> bytes:
    """Return the payload of an envelope that one of the keys has signed.

    The `keyid` of a signature only narrows the keys that are tried. The ids of the keys are computed from the keys.

    Args:
        envelope: The envelope, as parsed from JSON.
        public_keys: The keys that the caller trusts.
        payload_type: The only accepted type. None: the caller compares the type itself.

    Raises:
        EnvelopeRefused: The envelope is malformed or of another type, or no signature is valid.
    """
    kind, payload, signatures = _parts(envelope)
    if payload_type is not None and kind != payload_type:
        raise EnvelopeRefused(f"The payload type is {kind!r} instead of {payload_type!r}.")
    trusted = {key_id(key): key for key in public_keys}
    signed = pre_auth_encoding(kind, payload)
    for name, signature in signatures:
        candidates = trusted.values() if not name else [trusted[name]] if name in trusted else []
        if any(_has_signed(key, signature, signed) for key in candidates):
            return payload
    names = [name for name, _ in signatures if name]
    if names and not any(name in trusted for name in names):
        text = f"None of the named keys has signed it: the signature names the key {', '.join(names)}."
        raise EnvelopeRefused(text)
    raise EnvelopeRefused("The signature is not valid.")


def _parts(envelope: Mapping[str, Any]) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    kind, entries = envelope.get("payloadType"), envelope.get("signatures")
    if not isinstance(kind, str):
        raise EnvelopeRefused("`payloadType` is not a text.")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_SIGNATURES:
        raise EnvelopeRefused(f"`signatures` is not a list of 1 to {MAX_SIGNATURES} signatures.")
    signatures: list[tuple[str, bytes]] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise EnvelopeRefused("A signature is not an object.")
        name = entry.get("keyid") or ""
        if not isinstance(name, str):
            raise EnvelopeRefused("`keyid` is not a text.")
        signatures.append((name, _decoded("sig", entry.get("sig"))))
    named = {name: signature for name, signature in signatures if name}
    unnamed = {signature for name, signature in signatures if not name}
    if len(named) + len(unnamed) < len(signatures) or len(set(named.values())) < len(named):
        raise EnvelopeRefused("Two signatures have the same key or the same bytes.")
    return kind, _decoded("payload", envelope.get("payload")), signatures


def _decoded(name: str, text: Any) -> bytes:
    """Return the bytes of standard or URL-safe base64 with padding. No other text gives the same bytes."""
    if isinstance(text, str):
        try:
            data = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            data = b""
        # Also without mixed alphabets, and without bits after the last byte, which decoders ignore.
        if text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
            return data
    raise EnvelopeRefused(f"`{name}` is not base64.")


def _has_signed(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True
