"""`X-Hub-Signature-256`: the HMAC of the body's bytes as they came, and of nothing that was read from them."""

import hashlib
import hmac
import re

HEADER = "X-Hub-Signature-256"
_FORM = re.compile(r"sha256=([0-9a-f]{64})")


def digest_in(header: str | None) -> str | None:
    """The digest that was sent, or None. Only sha256: GitHub still sends the older `X-Hub-Signature` with sha1 beside
    it, and who accepts that as well is as strong as that."""
    found = _FORM.fullmatch(header or "")
    return found[1] if found else None


def verify(digest: str | None, secret: str, raw: bytes) -> bool:
    """Whether this secret signed these bytes, in a time that tells nothing of how wrong the digest is."""
    made = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
    return hmac.compare_digest(made, digest or "")
