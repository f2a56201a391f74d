"""Public keys of signatures: Ed25519, in PEM, with the key id that securesystemslib computes. Imports no Django."""

import hashlib

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

ALGORITHM = "ed25519"


class InvalidPublicKey(ValueError):
    """A text is not the PEM of an Ed25519 public key."""


def key_id(public_key: Ed25519PublicKey) -> str:
    """Return the id of a key: 64 hex digits, computed from the key alone.

    securesystemslib computes the same from a PEM, and looks for a signature under no other id.
    """
    raw = public_key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    # Canonical JSON: the members in the order of their names, without blanks.
    described = f'{{"keytype":"{ALGORITHM}","keyval":{{"public":"{raw}"}},"scheme":"{ALGORITHM}"}}'
    return hashlib.sha256(described.encode()).hexdigest()


def public_key_pem(public_key: Ed25519PublicKey) -> str:
    """Return a public key as PEM (SubjectPublicKeyInfo)."""
    return public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_public_key(pem: str | bytes) -> Ed25519PublicKey:
    """Return the public key of a PEM.

    Raises:
        InvalidPublicKey: It is no PEM, a private key, or a key of another algorithm.
    """
    try:
        key = load_pem_public_key(pem.encode() if isinstance(pem, str) else pem)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidPublicKey("This is not the PEM of a public key.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidPublicKey("This public key is not of the algorithm Ed25519.")
    return key
