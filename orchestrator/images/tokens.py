"""Tokens of the image registry: pull tokens of runners (contract 1.5), access tokens of people and project keys.

A token is a JWT signed with HS256, by a key of its audience: a token of one audience is never one of another. A pull
token is created anew for each claim. No token is stored or logged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import jwt
from django.conf import settings
from django.utils.crypto import salted_hmac

AUDIENCE: Final = "oci_runner"
PERSON_AUDIENCE: Final = "oci_auth"
PROJECT_AUDIENCE: Final = "oci_project"
PULL: Final = "pull"
PUSH: Final = "push"
ACCESS_LIFETIME: Final = timedelta(seconds=300)
LIFETIME: Final = timedelta(seconds=600)
CLOCK_SKEW_SECONDS: Final = 60  # between two machines of this server
_ALGORITHM: Final = "HS256"
# Part of the derivation of the signing keys: another value makes all tokens invalid.
_SALT: Final = "orchestrator.images.tokens"
_REQUIRED: Final = ["aud", "exp", "iat", "iss", "sub"]
_ACCESS_AUDIENCES: Final = frozenset({PERSON_AUDIENCE, PROJECT_AUDIENCE})


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


@dataclass(frozen=True)
class RepositoryAccess:
    """The permissions of an access token on one repository.

    Attributes:
        name: The repository as the client named it: the slug or the UUID of a project.
        project: The UUID of the project, or None if the caller may not know whether there is one.
        requested: The actions that the client asked for.
        actions: The actions that the caller's rights permit, of those that were requested.
        organization: The UUID of the project's organization, for which uploads in progress are counted; or None.
    """

    name: str
    project: UUID | None
    requested: tuple[str, ...]
    actions: tuple[str, ...]
    organization: UUID | None = None


@dataclass(frozen=True)
class AccessGrant:
    """The content of a valid access token.

    Attributes:
        subject: The person or project key, for people who read it.
        access: The repositories that were requested.
    """

    subject: str
    access: tuple[RepositoryAccess, ...]

    def find(self, name: str) -> RepositoryAccess | None:
        """Return the entry of a repository: the one with this name, else one whose project has this UUID."""
        named = [entry for entry in self.access if entry.name == name]
        named += [entry for entry in self.access if entry.project is not None and str(entry.project) == name]
        return named[0] if named else None


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


def new_access_token(
    subject: str, access: Sequence[RepositoryAccess], *, audience: str, now: datetime | None = None
) -> str:
    """Return a token with which a docker client may use repositories for five minutes.

    Args:
        subject: The caller.
        access: The repositories, and what the caller may do there.
        audience: `PERSON_AUDIENCE` or `PROJECT_AUDIENCE`.
        now: The time of the token; by default the current time.
    """
    issued_at = now or datetime.now(UTC)
    claims = {
        "aud": audience,
        "iat": issued_at,
        "exp": issued_at + ACCESS_LIFETIME,
        "iss": settings.PUBLIC_URL,
        "sub": subject,
        "access": [
            {
                "name": entry.name,
                "project": None if entry.project is None else str(entry.project),
                "organization": None if entry.organization is None else str(entry.organization),
                "requested": list(entry.requested),
                "actions": list(entry.actions),
            }
            for entry in access
        ],
    }
    return jwt.encode(claims, _key(settings.SECRET_KEY, audience), algorithm=_ALGORITHM)


def read_token(token: str, *, now: datetime | None = None) -> "PullGrant | AccessGrant":
    """Return the content of a valid token of any audience of the registry.

    Args:
        token: The token.
        now: The time of the request; by default the current time.

    Raises:
        InvalidPullToken: The token is not valid.
    """
    audience = _claimed_audience(token)
    if audience not in _ACCESS_AUDIENCES:
        return read_pull_token(token, now=now)
    claims = _decode(token, audience)
    _check_times(claims, now)
    try:
        access = tuple(_access(entry) for entry in claims["access"])
    except (KeyError, TypeError, ValueError):
        raise InvalidPullToken("The token lacks a claim of an access token.") from None
    return AccessGrant(str(claims["sub"]), access)


def _access(entry: dict[str, Any]) -> RepositoryAccess:
    project, organization = entry["project"], entry.get("organization")  # the former release names none
    return RepositoryAccess(
        str(entry["name"]),
        None if project is None else UUID(project),
        tuple(map(str, entry["requested"])),
        tuple(map(str, entry["actions"])),
        None if organization is None else UUID(organization),
    )


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
    claims = _decode(token, AUDIENCE)
    _check_times(claims, now)
    try:
        oci = claims["oci"]
        return PullGrant(UUID(claims["sub"]), str(oci["repository"]), tuple(map(str, oci["actions"])))
    except (KeyError, TypeError, ValueError):
        raise InvalidPullToken("The token lacks a claim of a pull token.") from None


def _check_times(claims: dict[str, Any], now: datetime | None) -> None:
    timestamp = (now or datetime.now(UTC)).timestamp()
    try:
        issued_at, expires_at = float(claims["iat"]), float(claims["exp"])
    except (TypeError, ValueError):
        raise InvalidPullToken("The token lacks a valid time.") from None
    if not issued_at - CLOCK_SKEW_SECONDS <= timestamp < expires_at:
        raise InvalidPullToken("The token has expired or is not valid yet.")


def _claimed_audience(token: str) -> str | None:
    """Return the audience that a token claims. It only selects the key by which the token is verified."""
    try:
        audience = jwt.decode(token, options={"verify_signature": False}).get("aud")
    except jwt.InvalidTokenError:
        return None
    return audience if isinstance(audience, str) else None


def _decode(token: str, audience: str) -> dict[str, Any]:
    """Return the claims of a token that this server has signed, with its current key or a former one."""
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                _key(secret, audience),
                algorithms=[_ALGORITHM],
                audience=audience,
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


def _key(secret: str, audience: str = AUDIENCE) -> bytes:
    """Return the signing key of an audience. It is derived, so that no other signature of this server is a token."""
    return salted_hmac(_SALT, audience, secret=secret, algorithm="sha256").digest()
