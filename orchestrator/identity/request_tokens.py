"""Tokens with which a workflow job requests identity tokens, while it has its lease.

The token is in the environment of the job, so its steps can read and print it. It is masked in the log like a secret.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import jwt
from django.conf import settings

from orchestrator.core.sealing import derived_keys
from runtime_jobs.models import Job, WorkflowRun

PATH: Final = "/v1/identity/token"
URL_VARIABLE: Final = "ACTIONS_ID_TOKEN_REQUEST_URL"
TOKEN_VARIABLE: Final = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"  # noqa: S105 the name of a variable
MAX_TOKEN_LENGTH: Final = 2048
_LABEL: Final = "identity-request-v1"
_ALGORITHM: Final = "HS256"
_MARGIN: Final = timedelta(hours=1)  # a job may be claimed, checked out and ended beside its time limit
_PERMISSION: Final = "id-token"
_GRANTED: Final = "write"
_WRITE_ALL: Final = "write-all"


class InvalidRequestToken(Exception):
    """The token was not issued by this server for a job, or has expired."""


@dataclass(frozen=True)
class RequestGrant:
    """The content of a valid token.

    Attributes:
        job_id: The key of the job.
        fence: The fence of the lease under which the runner has the job.
    """

    job_id: int
    fence: int


def may_request(job: Job, run: WorkflowRun) -> bool:
    """Return whether a job may have identity tokens: its file permits that, and its commit is no fork's."""
    if run.from_fork:
        return False
    permissions = job.spec.get("permissions") or {}
    per = permissions.get("per") or {}
    return bool(per.get(_PERMISSION, "") == _GRANTED if per else permissions.get("mode") == _WRITE_ALL)


def request_environment(job: Job, run: WorkflowRun, *, now: datetime) -> dict[str, str]:
    """Return the environment variables with which a claimed job requests identity tokens; empty without permission.

    The URL has a query: GitHub's client appends `&audience=…`.

    Args:
        job: The job, with the fence of its claim.
        run: Its workflow run.
        now: The time of the claim.
    """
    if not may_request(job, run):
        return {}
    expires_at = now + timedelta(seconds=job.timeout_seconds or 0) + _MARGIN
    claims = {"job": job.pk, "fence": job.fence, "exp": int(expires_at.timestamp())}
    token = jwt.encode(claims, derived_keys(_LABEL)[0], algorithm=_ALGORITHM)
    return {URL_VARIABLE: f"{settings.PUBLIC_URL}{PATH}?api-version=1", TOKEN_VARIABLE: token}


def read_request_token(token: str, *, now: datetime) -> RequestGrant:
    """Return the content of a token. Whether the job still has its lease is for the caller to decide.

    Args:
        token: The token.
        now: The present time.

    Raises:
        InvalidRequestToken: The token is not valid.
    """
    claims = _verified(token)
    job_id, fence, expires_at = (claims.get(name) for name in ("job", "fence", "exp"))
    if not all(type(value) is int for value in (job_id, fence, expires_at)):
        raise InvalidRequestToken
    assert job_id is not None and fence is not None and expires_at is not None  # noqa: S101, PT018 they are numbers
    if now.timestamp() >= expires_at:
        raise InvalidRequestToken
    return RequestGrant(job_id, fence)


def _verified(token: str) -> dict[str, Any]:
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidRequestToken
    for key in derived_keys(_LABEL):
        try:
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=[_ALGORITHM], options={"verify_exp": False})
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError:
            break
        return claims
    raise InvalidRequestToken
