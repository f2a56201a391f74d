"""Identity tokens: signed statements about a running workflow job, which outsiders verify by the published keys."""

import secrets
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from django.conf import settings

from leases.models import Lease
from orchestrator.core.sealing import unseal
from orchestrator.identity.keys import PURPOSE, ensure_identity_key, published_keys, signing_key
from orchestrator.identity.request_tokens import RequestGrant, may_request, read_request_token
from runtime_jobs.db_time import database_now
from runtime_jobs.models import IdentityKey, Job, Repository, WorkflowRun

LIFETIME: Final = timedelta(minutes=10)
MAX_AUDIENCE_LENGTH: Final = 512
ALGORITHM: Final = "RS256"
_CLOCK_SKEW: Final = timedelta(seconds=60)  # between this server and a verifier
_BRANCH: Final = "refs/heads/"
_TAG: Final = "refs/tags/"
_PULL_REQUEST: Final = "pull_request"
# Claims beside those that every token has, for the discovery document.
CLAIMS: Final = (
    *("sub", "aud", "exp", "iat", "nbf", "iss", "jti", "ref", "ref_type", "sha", "repository", "repository_id"),
    *("repository_owner", "repository_visibility", "run_id", "run_number", "run_attempt", "actor", "event_name"),
    *("workflow", "workflow_ref", "workflow_sha", "job_workflow_ref", "job_id", "head_ref", "base_ref"),
    "runner_environment",
)


class IdentityRefused(Exception):
    """The job may not have an identity token: it has ended, or its run does not permit that."""


def identity_token(request_token: str, audience: str | None, *, now: datetime | None = None) -> str:
    """Return an identity token for the job that sends this request token.

    Args:
        request_token: The token from the environment of the job.
        audience: The verifier for which the token counts. None: the URL of the repository's owner.
        now: The present time; by default the time of the database.

    Raises:
        InvalidRequestToken: The request token is not valid.
        IdentityRefused: The job has lost its lease, or its run does not permit identity tokens.
    """
    keys = _keys(now)  # before the time: the first key must not be younger than the token
    time = now or database_now()
    grant = read_request_token(request_token, now=time)
    job, run = _job_of(grant, time)
    claims = _claims(job, run, audience, time)
    key = signing_key(keys, time)
    if key is None:
        raise IdentityRefused("There is no key that signs identity tokens now.")
    private = _private_key(key.kid, bytes(key.sealed))
    return jwt.encode(claims, private, algorithm=ALGORITHM, headers={"kid": key.kid})


def key_set(now: datetime | None = None) -> dict[str, Any]:
    """Return the published keys as a JSON Web Key Set.

    Args:
        now: The present time; by default the time of the database.
    """
    keys = _keys(now)
    return {"keys": [key.public_jwk for key in published_keys(keys, now or database_now())]}


def discovery_document() -> dict[str, Any]:
    """Return the document of OpenID Connect Discovery."""
    return {
        "issuer": settings.PUBLIC_URL,
        "jwks_uri": f"{settings.PUBLIC_URL}/.well-known/jwks.json",
        "subject_types_supported": ["public"],
        "response_types_supported": ["id_token"],
        "claims_supported": list(CLAIMS),
        "id_token_signing_alg_values_supported": [ALGORITHM],
        "scopes_supported": ["openid"],
    }


def _keys(now: datetime | None) -> list[IdentityKey]:
    """Return all keys. The first call of an installation creates one."""
    found = list(IdentityKey.objects.all())
    if not found:
        ensure_identity_key(now=now)
        found = list(IdentityKey.objects.all())
    return found


def _job_of(grant: RequestGrant, now: datetime) -> tuple[Job, WorkflowRun]:
    job = Job.objects.filter(pk=grant.job_id, fence=grant.fence).first()
    run = None
    if job is not None and Lease.objects.open().filter(job=job, fence=grant.fence, expires_at__gt=now).exists():
        runs = WorkflowRun.objects.select_related("repository__project")
        run = runs.filter(batch=job.batch_id).first()
    if job is None or run is None:
        raise IdentityRefused("The job has ended, or its runner has lost it.")
    if not may_request(job, run):
        raise IdentityRefused("The job may not have identity tokens: permissions: id-token: write is missing.")
    return job, run


def _claims(job: Job, run: WorkflowRun, audience: str | None, now: datetime) -> dict[str, Any]:
    repository, issued_at = run.repository, int(now.timestamp())
    workflow_ref = f"{repository.full_name}/{run.workflow_file}@{run.head_ref}"
    head_ref, base_ref = _refs_of_pull_request(run)
    return {
        "iss": settings.PUBLIC_URL,
        "sub": _subject(repository, run),
        "aud": audience or f"{settings.PUBLIC_URL}/{repository.owner}",
        "iat": issued_at,
        "nbf": issued_at - int(_CLOCK_SKEW.total_seconds()),
        "exp": issued_at + int(LIFETIME.total_seconds()),
        "jti": secrets.token_urlsafe(24),
        "ref": run.head_ref,
        "ref_type": "tag" if run.head_ref.startswith(_TAG) else "branch",
        "sha": run.head_sha,
        "repository": repository.full_name,
        "repository_id": str(repository.pk),
        "repository_owner": repository.owner,
        "repository_visibility": "private" if repository.is_private else "public",
        "run_id": str(run.pk),
        "run_number": str(run.run_index),
        "run_attempt": str(job.attempt),
        "actor": run.actor,
        "event_name": run.event,
        "workflow": run.workflow_name or run.workflow_file,
        "workflow_ref": workflow_ref,
        "workflow_sha": run.head_sha,
        "job_workflow_ref": workflow_ref,
        "job_id": str(job.pk),
        "head_ref": head_ref,
        "base_ref": base_ref,
        "runner_environment": "self-hosted",
    }


def _subject(repository: Repository, run: WorkflowRun) -> str:
    """Return the subject. Whoever opens a pull request chooses its ref, so a policy for a branch must not match it."""
    if run.event == _PULL_REQUEST:
        return f"repo:{repository.full_name}:pull_request"
    return f"repo:{repository.full_name}:ref:{run.head_ref}"


def _refs_of_pull_request(run: WorkflowRun) -> tuple[str, str]:
    pull_request = run.event_payload.get(_PULL_REQUEST) if isinstance(run.event_payload, dict) else None
    if run.event != _PULL_REQUEST or not isinstance(pull_request, dict):
        return "", ""
    head, base = pull_request.get("head") or {}, pull_request.get("base") or {}
    return str(head.get("ref") or "").removeprefix(_BRANCH), str(base.get("ref") or "").removeprefix(_BRANCH)


@lru_cache(maxsize=4)
def _private_key(kid: str, sealed: bytes) -> RSAPrivateKey:
    key = load_der_private_key(unseal(PURPOSE, sealed, context=kid), password=None)
    assert isinstance(key, RSAPrivateKey)  # noqa: S101 `identity.keys` has created it
    return key
