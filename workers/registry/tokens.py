"""Bearer tokens: 256 random bits behind a prefix that says whose it is. Shown once, stored as SHA-256."""

import hashlib
import re
import secrets

API_PREFIX = "rto_api_"
WORKER_PREFIX = "rto_worker_"
_SHAPE = re.compile(r"rto_(api|worker)_[A-Za-z0-9_-]{43}")


def new_token(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


def has_token_shape(value: str) -> bool:
    """Refuse what cannot be a token before anything is hashed or looked up."""
    return len(value) < 64 and _SHAPE.fullmatch(value) is not None


def digest_of(token: str) -> str:
    """A plain SHA-256: the token is random, there is nothing to guess that a slow hash would protect."""
    return hashlib.sha256(token.encode()).hexdigest()
