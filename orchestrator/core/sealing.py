"""Seals bytes that the database must not reveal, and derives keys, from the root key of the installation.

The root key is 32 bytes in base64: ACTIONS_ROOT_KEY, or else a file of the state directory, which the first use
creates. ACTIONS_ROOT_KEYS_OLD lists former ones. They open and verify what they have sealed and signed, and seal and
sign nothing. `manage.py reseal` seals everything again with the current key; then a former one may be removed.

A sealed value is: version (1 byte), id of the root key (8), nonce (12), ciphertext, tag (16). Each context has a key of
its own, so random nonces do not repeat under one key, however many values an installation seals.
"""

import base64
import binascii
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from runtime_jobs.secret_files import load_or_create_secret

KEY_BYTES: Final = 32
ROOT_KEY_FILE: Final = "actions_root_key"  # in STATE_DIR
_VERSION: Final = b"\x01"
_KEY_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_HEADER_BYTES: Final = len(_VERSION) + _KEY_ID_BYTES
OVERHEAD_BYTES: Final = _HEADER_BYTES + _NONCE_BYTES + _TAG_BYTES  # a sealed value is so much longer than its content
# Parts of the derivation: other values make everything unreadable that was sealed before.
_ID_LABEL: Final = "root-key-id-v1"
_SEALING_LABEL: Final = "sealing-v1:"
_PURPOSE: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")


class SealedValueError(Exception):
    """A sealed value cannot be opened: its key is unknown, it was altered, or it is in the place of another one."""


@dataclass(frozen=True)
class _RootKey:
    secret: bytes
    id: bytes


def seal(purpose: str, data: bytes, *, context: str) -> bytes:
    """Encrypt and authenticate bytes with the current root key.

    Args:
        purpose: The kind of value, such as `secret`: lower-case letters, digits and hyphens.
        data: The bytes; they may be empty.
        context: The place of the value, such as its scope and name. It is not secret, and not stored in the result.

    Returns:
        The sealed value, `OVERHEAD_BYTES` longer than `data`. Two calls never return the same.
    """
    root = _root_keys()[0]
    header = _VERSION + root.id
    nonce = os.urandom(_NONCE_BYTES)
    cipher = ChaCha20Poly1305(_context_key(root, purpose, context))
    return header + nonce + cipher.encrypt(nonce, data, _associated_data(header, purpose, context))


def unseal(purpose: str, sealed: bytes | memoryview, *, context: str) -> bytes:
    """Return the bytes that `seal` has encrypted, with the current root key or a former one.

    Args:
        purpose: The kind of value, as for `seal`.
        sealed: The sealed value. Django returns a `memoryview` for a binary column; that is accepted, too.
        context: The place of the value, as for `seal`.

    Raises:
        SealedValueError: The value has another format, purpose or context, was altered, or its root key is unknown.
    """
    whole = bytes(sealed)
    root = _root_key_of(whole)
    header, nonce = whole[:_HEADER_BYTES], whole[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES]
    cipher = ChaCha20Poly1305(_context_key(root, purpose, context))
    try:
        return cipher.decrypt(nonce, whole[_HEADER_BYTES + _NONCE_BYTES :], _associated_data(header, purpose, context))
    except InvalidTag:
        text = f"The sealed value of {purpose} {context!r} was altered, or belongs to another place."
        raise SealedValueError(text) from None


def current_header() -> bytes:
    """Return the first bytes of each value that is sealed now: the version and the id of the current root key."""
    return _VERSION + _root_keys()[0].id


def is_current(sealed: bytes | memoryview) -> bool:
    """Return whether a sealed value has the current version and root key, so that `reseal` need not change it."""
    return bytes(sealed[:_HEADER_BYTES]) == current_header()


def derived_keys(label: str) -> list[bytes]:
    """Return a key of 32 bytes for each root key, the current one first: HKDF-SHA256 without salt (contract 1.2).

    Args:
        label: The use of the key, such as `actions-runner-jwt-v1`. No two uses have the same label.
    """
    if label.startswith(_SEALING_LABEL) or label == _ID_LABEL:
        raise ValueError(f"The label {label!r} is reserved for sealed values.")
    return [_derive(root.secret, label) for root in _root_keys()]


def decode_root_key(text: str) -> bytes:
    """Return the 32 bytes of a root key in base64: standard or URL-safe alphabet, with or without padding.

    Raises:
        ValueError: The text is not base64, or not of 32 bytes.
    """
    compact = text.strip().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        secret = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it is not base64") from None
    if len(secret) != KEY_BYTES:
        raise ValueError(f"it has {len(secret)} bytes instead of {KEY_BYTES}")
    return secret


def _root_keys() -> tuple[_RootKey, ...]:
    return _parsed(settings.ACTIONS_ROOT_KEY, tuple(settings.ACTIONS_ROOT_KEYS_OLD), str(settings.STATE_DIR))


@lru_cache(maxsize=8)
def _parsed(current: str, old: tuple[str, ...], state_dir: str) -> tuple[_RootKey, ...]:
    """Return the root keys of some settings. The file is read once: it never changes while a process runs."""
    path = Path(state_dir, ROOT_KEY_FILE)
    named = [("ACTIONS_ROOT_KEY", current)] if current else [(str(path), load_or_create_secret(path, KEY_BYTES))]
    named += [(f"ACTIONS_ROOT_KEYS_OLD[{place}]", text) for place, text in enumerate(old)]
    keys: dict[bytes, _RootKey] = {}
    for name, text in named:
        try:
            secret = decode_root_key(text)
        except ValueError as error:
            message = f"{name}: a root key is 32 bytes in base64, and {error}."
            raise ImproperlyConfigured(message) from None
        identifier = _derive(secret, _ID_LABEL)[:_KEY_ID_BYTES]
        keys.setdefault(identifier, _RootKey(secret, identifier))
    return tuple(keys.values())


def _root_key_of(sealed: bytes) -> _RootKey:
    if len(sealed) < OVERHEAD_BYTES or not sealed.startswith(_VERSION):
        raise SealedValueError("The value is not sealed, or was sealed by a newer release.")
    identifier = sealed[len(_VERSION) : _HEADER_BYTES]
    for root in _root_keys():
        if root.id == identifier:
            return root
    text = f"The root key {identifier.hex()} of the sealed value is unknown. Add it to ACTIONS_ROOT_KEYS_OLD."
    raise SealedValueError(text)


@lru_cache(maxsize=64)
def _derive(secret: bytes, label: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=label.encode()).derive(secret)


def _context_key(root: _RootKey, purpose: str, context: str) -> bytes:
    if not _PURPOSE.fullmatch(purpose):
        raise ValueError(f"The purpose {purpose!r} must be lower-case letters, digits and hyphens.")
    of_purpose = _derive(root.secret, _SEALING_LABEL + purpose)
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=context.encode()).derive(of_purpose)


def _associated_data(header: bytes, purpose: str, context: str) -> bytes:
    return header + purpose.encode() + b"\0" + context.encode()
