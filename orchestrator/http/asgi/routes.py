"""What the server must know of a path before Django sees the request: how large its body may be, and where it runs."""

from django.conf import settings

HEALTH = "/healthz"
LONG_POLLS = frozenset({"/v1/runtime/leases", "/api/v1/internal/lease"})  # the views that `waiting.patient` wraps
# Forms with a password: to hash one costs a tenth of a second of a processor and 100 MB, by intention.
PASSWORD_FORMS = frozenset({"/login/", "/admin/login/", "/admin/password_change/"})
USER_FORMS = "/admin/auth/user/"  # operators set passwords here
READING = frozenset({"GET", "HEAD"})
IGNORED_BYTES = 4 << 10  # a body has no meaning here; some clients send an empty object with every request


def body_limit(method: str, path: str) -> int:
    """Returns the largest body in bytes that a request of this method to this path may have."""
    if method in READING:
        return IGNORED_BYTES
    limits: dict[str, int] = settings.BODY_LIMITS
    if path in limits:
        return limits[path]
    found = (limit for prefix, limit in limits.items() if prefix.endswith("/") and path.startswith(prefix))
    return next(found, settings.BODY_LIMIT_BYTES)


def hashes_a_password(method: str, path: str) -> bool:
    """Says whether the request may cost the hash of a password."""
    return method == "POST" and (path in PASSWORD_FORMS or path.startswith(USER_FORMS))


def can_wait(method: str, path: str) -> bool:
    """Says whether the request may be a long poll."""
    return method == "POST" and path in LONG_POLLS
