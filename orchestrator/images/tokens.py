"""Pull tokens: a runner's permission to pull the images of one project for ten minutes (contract 1.5).

A token is a JWT signed with HS256. It is created anew for each claim, and is neither stored nor logged.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import jwt
from django.conf import settings
from django.utils.crypto import salted_hmac

AUDIENCE: Final = "oci_runner"
PULL: Final = "pull"
LIFETIME: Final = timedelta(seconds=600)
CLOCK_SKEW_SECONDS: Final = 60  # between two machines of this server
_ALGORITHM: Final = "HS256"
# Part of the derivation of the signing keys: another value makes all tokens invalid.
_SALT: Final = "orchestrator.images.tokens"
_REQUIRED: Final = ["aud", "exp", "iat", "iss", "sub"]


class InvalidPullToken(Exception):
    """The token is malformed, expired, or was not signed by this server for the registry: 401."""


class PullForbidden(Exception):
    """The token is valid and does not permit this action on this repository: 403."""


@dataclass(frozen=True)
class PullGrant:
    """The content of a valid pull token.

    Attributes:
        runner: The UUID of the runner.
        repository: The UUID of the project as text. A path with another spelling does not match.
        actions: The permitted actions.
    """

    runner: UUID
    repository: str
    actions: tuple[str, ...]


def new_pull_token(runner: UUID, project: UUID, *, now: datetime | None = None) -> str:
    """Return a token with which a runner may pull the images of a project.

    Args:
        runner: The UUID of the runner.
        project: The UUID of the project, which is the repository of its images.
        now: The time of the token; by default the current time.
    """
    issued_at = now or datetime.now(UTC)
    claims = {
        "aud": AUDIENCE,
        "iat": issued_at,
        "exp": issued_at + LIFETIME,
        "iss": settings.PUBLIC_URL,
        "sub": str(runner),
        "oci": {"repository": str(project), "actions": [PULL]},
    }
    return jwt.encode(claims, _key(settings.SECRET_KEY), algorithm=_ALGORITHM)


def verify_pull_token(token: str, *, repository: str, action: str = PULL, now: datetime | None = None) -> PullGrant:
    """Return the content of a token that permits an action on a repository.

    Args:
        token: The token.
        repository: The repository exactly as the path of the request names it.
        action: The action, such as `pull` or `push`.
        now: The time of the request; by default the current time.

    Raises:
        InvalidPullToken: The token is not valid.
        PullForbidden: The token is for another repository, or does not permit the action.
    """
    grant = read_pull_token(token, now=now)
    if repository != grant.repository:
        raise PullForbidden("The token is for another repository.")
    if action not in grant.actions:
        raise PullForbidden(f"The token does not permit the action {action}.")
    return grant


def read_pull_token(token: str, *, now: datetime | None = None) -> PullGrant:
    """Return the content of a valid token, whatever it permits.

    Args:
        token: The token.
        now: The time of the request; by default the current time.

    Raises:
        InvalidPullToken: The token is not valid.
    """
    claims = _decode(token)
    timestamp = (now or datetime.now(UTC)).timestamp()
    try:
        issued_at, expires_at = float(claims["iat"]), float(claims["exp"])
        oci = claims["oci"]
        grant = PullGrant(UUID(claims["sub"]), str(oci["repository"]), tuple(map(str, oci["actions"])))
    except (KeyError, TypeError, ValueError):
        raise InvalidPullToken("The token lacks a claim of a pull token.") from None
    if not issued_at - CLOCK_SKEW_SECONDS <= timestamp < expires_at:
        raise InvalidPullToken("The token has expired or is not valid yet.")
    return grant


def _decode(token: str) -> dict[str, Any]:
    """Return the claims of a token that this server has signed, with its current key or a former one."""
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                _key(secret),
                algorithms=[_ALGORITHM],
                audience=AUDIENCE,
                issuer=settings.PUBLIC_URL,
                # The caller compares the times with its own clock.
                options={"require": _REQUIRED, "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError:
            break
        return claims
    raise InvalidPullToken("The token was not issued by this server for its registry.")


def _key(secret: str) -> bytes:
    """Return the signing key. It is derived, so that no other signature of this server is a pull token."""
    return salted_hmac(_SALT, AUDIENCE, secret=secret, algorithm="sha256").digest()
