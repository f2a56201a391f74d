"""Bearer tokens: 256 random bits after a prefix for the kind of holder. Displayed once, stored as SHA-256."""

import hashlib
import re
import secrets

API_PREFIX = "rto_api_"
WORKER_PREFIX = "rto_worker_"
_SHAPE = re.compile(r"rto_(api|worker)_[A-Za-z0-9_-]{43}")


def new_token(prefix: str) -> str:
    """Return a random token with the prefix of its kind."""
    return prefix + secrets.token_urlsafe(32)


def has_token_shape(value: str) -> bool:
    """Return whether a value can be a token, before it is hashed or looked up."""
    return len(value) < 64 and _SHAPE.fullmatch(value) is not None


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token. It is random, so a slow hash would protect nothing."""
    return hashlib.sha256(token.encode()).hexdigest()
