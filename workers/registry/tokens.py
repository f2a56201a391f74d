"""Bearer tokens of programs, workers and runners. Each is displayed once and stored as its SHA-256.

Native tokens have 256 random bits after a prefix for the kind of holder. Keys of the Bencher protocol have the form
that its clients check: a prefix, then 30 letters and digits (178 bits).
"""

import hashlib
import re
import secrets
import string

API_PREFIX = "rto_api_"
WORKER_PREFIX = "rto_worker_"
RUNNER_PREFIX = "bencher_runner_"
USER_PREFIX = "bencher_user_"
PROJECT_PREFIX = "bencher_run_"
REGISTRATION_BYTES = 32  # of a token of document 003, which is written in hexadecimal digits
_SHAPE = re.compile(r"rto_(api|worker)_[A-Za-z0-9_-]{43}")
_ALPHANUMERICS = string.ascii_letters + string.digits
_KEY_LENGTH = 30
# Runners before version 0.6.4 have keys of 64 hexadecimal digits, which stay valid.
_RUNNER_KEY = re.compile(rf"{RUNNER_PREFIX}(?:[0-9A-Za-z]{{{_KEY_LENGTH}}}|[0-9a-f]{{64}})")


def new_token(prefix: str) -> str:
    """Return a random token with the prefix of its kind."""
    return prefix + secrets.token_urlsafe(32)


def new_key(prefix: str) -> str:
    """Return a random key of the Bencher protocol: the prefix of its kind, then 30 letters and digits."""
    return prefix + "".join(secrets.choice(_ALPHANUMERICS) for _ in range(_KEY_LENGTH))


def has_token_shape(value: str) -> bool:
    """Return whether a value can be a native token, before it is hashed or looked up."""
    return len(value) < 64 and _SHAPE.fullmatch(value) is not None


def has_runner_key_shape(value: str) -> bool:
    """Return whether a value can be the key of a runner: 45 characters, or 79 of the older form."""
    return _RUNNER_KEY.fullmatch(value) is not None


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token or key. It is random, so a slow hash would protect nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_registration_token() -> str:
    """Return a random token for a runner of workflow jobs: 64 lower-case hexadecimal digits."""
    return secrets.token_hex(REGISTRATION_BYTES)


def registration_digest(token: str) -> bytes | None:
    """Return the SHA-256 of the bytes that a registration token spells, in either case; None for any other text."""
    if len(token) != 2 * REGISTRATION_BYTES or not token.isascii():
        return None
    try:
        raw = bytes.fromhex(token)
    except ValueError:
        return None
    return hashlib.sha256(raw).digest() if len(raw) == REGISTRATION_BYTES else None
