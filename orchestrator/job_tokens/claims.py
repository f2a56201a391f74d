"""JSON Web Tokens of workflow jobs: their claims, their signature, and which ones are well-formed (contract 1.2).

A token is bound to the lease of its runner by the lease's fence. The number of its chain rises when a runner asks for
a new chain: the tokens of earlier chains are refused then. Whether a token counts is decided in the database.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import jwt
import orjson

from orchestrator.core.sealing import derived_keys

KEY_LABEL: Final = "actions-runner-jwt-v1"
LIFETIME: Final = timedelta(minutes=15)
MAX_TOKEN_LENGTH: Final = 2048
MAX_ID: Final = 2**63 - 1
_ALGORITHM: Final = "HS256"
_HEADER: Final = {"alg": _ALGORITHM, "typ": "JWT"}
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_SUBJECT: Final = re.compile(r"runner:([1-9][0-9]{0,18})")
_JTI: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
_JTI_BYTES: Final = 32
_SIGNER: Final = jwt.PyJWS(algorithms=[_ALGORITHM])


class TokenPurpose(StrEnum):
    """The use of a token. A token of one use is refused for the other."""

    API = "api"
    CHECKOUT = "checkout"


class InvalidJobToken(Exception):
    """The text is no token that this server has signed."""


@dataclass(frozen=True)
class JobToken:
    """The claims of a token.

    Attributes:
        runner_id: The key of the runner.
        job_id: The key of the job.
        run_id: The key of its workflow run.
        repository_id: The key of the run's repository.
        fence: The fence of the lease under which the runner has the job.
        chain: The number of the chain of tokens, from 0.
        expires_at: The token is refused from then on, in whole seconds.
        jti: The id of the token.
        purpose: The use of the token.
    """

    runner_id: int
    job_id: int
    run_id: int
    repository_id: int
    fence: int
    chain: int
    expires_at: datetime
    jti: str
    purpose: TokenPurpose


def new_token(
    purpose: TokenPurpose,
    *,
    runner_id: int,
    job_id: int,
    run_id: int,
    repository_id: int,
    fence: int,
    chain: int,
    now: datetime,
) -> JobToken:
    """Return the claims of a new token, which expires `LIFETIME` after `now`."""
    expires_at = (now + LIFETIME).replace(microsecond=0)
    jti = secrets.token_urlsafe(_JTI_BYTES)
    return JobToken(runner_id, job_id, run_id, repository_id, fence, chain, expires_at, jti, purpose)


def next_token(token: JobToken, *, now: datetime) -> JobToken:
    """Return the claims of the token that follows another one in its chain."""
    return new_token(
        token.purpose,
        runner_id=token.runner_id,
        job_id=token.job_id,
        run_id=token.run_id,
        repository_id=token.repository_id,
        fence=token.fence,
        chain=token.chain,
        now=now,
    )


def sign(token: JobToken) -> str:
    """Return a token in its compact form, signed with the newest key."""
    payload = {
        "sub": f"runner:{token.runner_id}",
        "purpose": str(token.purpose),
        "job_id": token.job_id,
        "run_id": token.run_id,
        "repo_id": token.repository_id,
        "fence": token.fence,
        "chain": token.chain,
        "exp": int(token.expires_at.timestamp()),
        "jti": token.jti,
    }
    return _SIGNER.encode(orjson.dumps(payload), derived_keys(KEY_LABEL)[0], algorithm=_ALGORITHM)


def verify(text: str) -> JobToken:
    """Return the claims of a token with a valid signature. Whether it has expired is for the caller to decide.

    Args:
        text: The compact form. Anything else is refused before a signature is computed.

    Raises:
        InvalidJobToken: The header, the signature or a claim is wrong.
    """
    if len(text) > MAX_TOKEN_LENGTH or not _SHAPE.fullmatch(text):
        raise InvalidJobToken("The token does not consist of three parts in base64url without padding.")
    return _claims(_verified_payload(text))


def _verified_payload(text: str) -> Any:
    for key in derived_keys(KEY_LABEL):
        try:
            token = _SIGNER.decode_complete(text, key, algorithms=[_ALGORITHM])
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError:
            raise InvalidJobToken("The token cannot be read.") from None
        if token["header"] != _HEADER:
            raise InvalidJobToken("The header of the token is not that of HS256.")
        try:
            return orjson.loads(token["payload"])
        except orjson.JSONDecodeError:
            raise InvalidJobToken("The payload of the token is not JSON.") from None
    raise InvalidJobToken("The signature of the token is wrong.")


def _claims(payload: Any) -> JobToken:
    if not isinstance(payload, dict):
        raise InvalidJobToken("The payload of the token is not an object.")
    subject, jti = payload.get("sub"), payload.get("jti")
    runner = _SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    if runner is None or not isinstance(jti, str) or not _JTI.fullmatch(jti):
        raise InvalidJobToken("The claim sub or jti is malformed.")
    try:
        purpose = TokenPurpose(payload.get("purpose") or TokenPurpose.API)
        expires_at = datetime.fromtimestamp(_number(payload, "exp"), UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidJobToken("The claim purpose or exp is malformed.") from None
    numbers = {name: _number(payload, name) for name in ("job_id", "run_id", "repo_id", "fence")}
    chain = _number(payload, "chain", minimum=0)
    return JobToken(
        _bounded(int(runner[1])),
        numbers["job_id"],
        numbers["run_id"],
        numbers["repo_id"],
        numbers["fence"],
        chain,
        expires_at,
        jti,
        purpose,
    )


def _number(payload: dict[str, Any], name: str, *, minimum: int = 1) -> int:
    value = payload.get(name)
    if type(value) is not int or value < minimum:
        raise InvalidJobToken(f"The claim {name} is not a whole number from {minimum}.")
    return _bounded(value)


def _bounded(value: int) -> int:
    if value > MAX_ID:
        raise InvalidJobToken("A number of the token is too large.")
    return value
