"""Reads the credentials of runners: registration tokens, and tokens of jobs (contract 1.1 and 1.3, steps 2 to 5)."""

from typing import Final

from django.core.exceptions import ImproperlyConfigured

from orchestrator.core.counters import JWT_REJECTED, count
from orchestrator.core.sealing import derived_keys
from orchestrator.http.errors.problems import ApiError
from orchestrator.job_tokens.claims import KEY_LABEL, MAX_ID, InvalidJobToken, JobToken, TokenPurpose, verify
from orchestrator.protocols.shithub.errors import not_found, unauthenticated
from runtime_jobs.prepared_queries import fetch_all
from workers.registry.models import WorkerState
from workers.registry.tokens import registration_digest

_BEARER: Final = "Bearer "
NO_BEARER: Final = "Send the token as `Authorization: Bearer TOKEN`."
INVALID_BEARER: Final = "The token is not valid, has expired, or was used before."
INVALID_REGISTRATION: Final = "The registration token is not valid, has expired, or was revoked."

_RUNNER: Final = """
SELECT token.runner_id
  FROM actions_registration_tokens token JOIN workers_worker worker ON worker.id = token.runner_id
 WHERE token.digest = %s AND token.revoked_at IS NULL AND worker.state <> %s
   AND (token.expires_at IS NULL OR token.expires_at > clock_timestamp())
"""


def bearer_of(header: str | None) -> str:
    """Return the value after `Bearer `, which is matched exactly, without blanks around it.

    Raises:
        ApiError: 401; the header is missing or has another scheme.
    """
    if header is None or not header.startswith(_BEARER):
        raise unauthenticated(NO_BEARER)
    return header.removeprefix(_BEARER).strip()


def authenticate_runner(header: str | None) -> int:
    """Return the key of the runner that a registration token identifies. Nothing is cached.

    Args:
        header: The value of `Authorization`, or None.

    Raises:
        ApiError: 401; the token is malformed, unknown, expired or revoked, or its runner was revoked.
    """
    digest = registration_digest(bearer_of(header))
    rows = fetch_all(_RUNNER, [digest, WorkerState.REVOKED]) if digest else []
    if not rows:
        raise unauthenticated(INVALID_REGISTRATION)
    return int(rows[0][0])


def client_of(runner_id: int) -> str:
    """Return the name under which requests of a runner take turns with those of other clients."""
    return f"runner:{runner_id}"


def job_key(text: str) -> int:
    """Return the key of a job in a path (contract 1.3, step 2).

    Raises:
        ApiError: 404; the text is no positive whole number.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_ID))
    if not is_number or not 0 < int(text) <= MAX_ID:
        raise not_found()
    return int(text)


def read_job_token(header: str | None) -> JobToken:
    """Return the claims of a token of a job (contract 1.3, steps 3, 4 and 5). No query is made.

    The expiry is for the database to decide. Refused tokens are counted, a missing one is not.

    Args:
        header: The value of `Authorization`, or None.

    Raises:
        ApiError: 401; the token is missing, malformed, wrongly signed or for another purpose.
    """
    text = bearer_of(header)
    try:
        token = verify(text)
    except InvalidJobToken:
        count([JWT_REJECTED])
        raise unauthenticated(INVALID_BEARER) from None
    if token.purpose != TokenPurpose.API:
        count([JWT_REJECTED])
        raise unauthenticated(INVALID_BEARER)
    return token


def require_signer() -> None:
    """Check that tokens can be signed (contract 1.3, step 1).

    Raises:
        ApiError: 503; the root key cannot be used.
    """
    try:
        derived_keys(KEY_LABEL)
    except ImproperlyConfigured:
        text = "The server cannot sign tokens: its root key cannot be used."
        raise ApiError(503, "overloaded", text, headers={"Retry-After": "10"}) from None
