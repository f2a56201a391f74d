"""Keys of people for the Bencher API: random keys (`bencher_user_…`) and JSON Web Tokens signed by this server.

Each key is returned once, by the operation that creates it, and has a row with its digest. The row also permits to
revoke a JSON Web Token, whose signature stays valid.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import jwt
from django.conf import settings
from django.utils.crypto import salted_hmac

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.services.credentials import revoke
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound, OperatorOnly
from runtime_jobs.identifiers import new_uuid
from runtime_jobs.models import PersonalKey
from workers.registry.tokens import USER_PREFIX, digest_of, new_key

ALGORITHM = "HS256"
AUDIENCE = "bencher_api"  # separates these tokens from all others that this server signs
JWT_LIFETIME = timedelta(days=365)  # where the operator gives no end
# Part of the derivation of the signing key: another value makes the tokens of all installations invalid.
_SALT = "orchestrator.personal_keys"
_REQUIRED_CLAIMS = ["aud", "exp", "iat", "sub"]


@operation
def create_personal_key(
    _: UnitOfWork,
    *,
    user: Any,
    name: str,
    is_jwt: bool = False,
    creator: Any,
    cause: Cause,
    expires_at: datetime | None = None,
) -> tuple[PersonalKey, str]:
    """Create a key of a person.

    The key can do what the person may do, now or later. So only a superuser creates keys of other people: a comparison
    of today's permissions would not hold once the person gets more.

    Args:
        user: The person, a user of the admin or a member of an organization.
        name: A name for people.
        is_jwt: Create a JSON Web Token; it ends after `JWT_LIFETIME` by default.
        creator: The user of the admin who asks for the key; None for an operator with a shell on the server.
        expires_at: The end of the key, or None.

    Returns:
        The row and the key.

    Raises:
        OperatorOnly: The key is of another person, and the creator is no superuser.
    """
    if creator is not None and creator.pk != user.pk and not creator.is_superuser:
        raise OperatorOnly("user: Only a superuser creates keys of other people. Choose yourself.")
    created_at = cause.now or database_now()
    if is_jwt:
        expires_at = (expires_at or created_at + JWT_LIFETIME).replace(microsecond=0)
        key = _sign(user, created_at, expires_at)
    else:
        key = new_key(USER_PREFIX)
    row = PersonalKey.objects.create(
        user=user,
        name=name,
        digest=digest_of(key),
        is_jwt=is_jwt,
        created_by=cause.actor.name[:150],
        created_at=created_at,
        expires_at=expires_at,
    )
    after = {"name": name, "is_jwt": is_jwt, "expires_at": expires_at and expires_at.isoformat()}
    record_event_of(row, "created", cause.at(created_at), after=after)
    return row, key


@operation
def revoke_personal_key(
    _: UnitOfWork,
    *,
    key_id: int,
    cause: Cause,
) -> PersonalKey:
    """Revoke a key of a person. A repetition changes nothing.

    Raises:
        NotFound: The key does not exist.
    """
    row = PersonalKey.objects.select_for_update(of=("self",)).select_related("user").filter(pk=key_id).first()
    if row is None:
        raise NotFound(f"The personal key {key_id} does not exist.")
    revoke(row, cause)
    return row


def subject_of_jwt(token: str) -> str:
    """Return the primary key of the user that a JSON Web Token of this server names.

    A token that was signed with a former key of `SECRET_KEY_FALLBACKS` is accepted.

    Raises:
        jwt.PyJWTError: The token is malformed, expired, for another audience or not signed by this server.
    """
    last_error: jwt.PyJWTError = jwt.InvalidTokenError()
    for key in _signing_keys():
        try:
            claims = jwt.decode(
                token, key, algorithms=[ALGORITHM], audience=AUDIENCE, options={"require": _REQUIRED_CLAIMS}
            )
        except jwt.InvalidSignatureError as error:
            last_error = error
            continue
        return str(claims["sub"])
    raise last_error


def _sign(user: Any, issued_at: datetime, expires_at: datetime) -> str:
    claims = {
        "aud": AUDIENCE,
        "iat": int(issued_at.timestamp()),
        "exp": int(expires_at.timestamp()),
        "iss": settings.PUBLIC_URL,
        "sub": str(user.pk),
        "jti": new_uuid().hex,  # two tokens of one second differ
    }
    return jwt.encode(claims, next(_signing_keys()), algorithm=ALGORITHM)


def _signing_keys() -> Iterator[bytes]:
    """Yield the key that signs, then those that are accepted as well."""
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        yield salted_hmac(_SALT, "jwt", secret=secret, algorithm="sha256").digest()
