"""Places in the feed as clients get them: the ids of Server-Sent Events, and `after` of pages.

A place contains numbers that count the transactions and events of all tenants. It is encrypted: otherwise two places
would disclose how much other tenants do. One block of AES is a permutation, so a place has the same text in every
process, and a text that no process has made is far in the future or malformed.
"""

import base64
import binascii
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from django.conf import settings
from django.utils.crypto import salted_hmac

from orchestrator.events.pages import JOB, OPERATOR, Place

_HALF: Final = 8  # bytes of the stamp, and of kind and id
_MAX_STAMP: Final = 1 << 48  # ten thousand transactions a second for nine centuries
_MAX_ID: Final = 1 << 48
_KIND_SHIFT: Final = 62


class InvalidPlace(ValueError):
    """The text is no place of this installation."""


def encode_place(place: Place) -> str:
    """Return the text of a place: 22 letters, digits, `-` and `_`."""
    number = place.kind << _KIND_SHIFT | place.id
    block = place.stamp.to_bytes(_HALF) + number.to_bytes(_HALF)
    encrypted = _cipher(settings.SECRET_KEY).encryptor().update(block)
    return _text(encrypted)


def decode_place(text: str) -> Place:
    """Return the place of a text.

    Raises:
        InvalidPlace: The text is malformed, or was made with a key that this installation does not have.
    """
    try:
        encrypted = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidPlace from error
    if len(encrypted) != 2 * _HALF or _text(encrypted) != text:
        raise InvalidPlace
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        block = _cipher(secret).decryptor().update(encrypted)
        stamp, number = int.from_bytes(block[:_HALF]), int.from_bytes(block[_HALF:])
        place = Place(stamp, number >> _KIND_SHIFT, number & ((1 << _KIND_SHIFT) - 1))
        if place.stamp < _MAX_STAMP and place.id < _MAX_ID and place.kind in {JOB, OPERATOR}:
            return place
    raise InvalidPlace


def _text(encrypted: bytes) -> str:
    return base64.urlsafe_b64encode(encrypted).rstrip(b"=").decode()


@lru_cache(maxsize=8)
def _cipher(secret: str) -> Cipher[ECB]:
    """Return the cipher under a key derived from a secret. One block is encrypted, so there is nothing to chain."""
    key = salted_hmac("orchestrator.events.place_tokens", "", secret=secret, algorithm="sha256").digest()
    return Cipher(AES256(key), ECB())  # noqa: S305 a permutation of single blocks
