"""Decides who may read a repository by git: runners with a checkout token, API tokens, everybody if it is public."""

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.db.models.functions import Lower
from django.http import HttpRequest
from rest_framework.exceptions import AuthenticationFailed, Throttled

from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.auth.authentication import authenticate_bearer
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.job_tokens.verification import verify_checkout_token
from orchestrator.protocols.git_http.wire import GitRefusal, not_found, unauthorized
from orchestrator.repositories.errors import MirrorMissing
from orchestrator.repositories.mirrors import require_mirror
from runtime_jobs.models import Repository
from runtime_jobs.models.tenants import Scope
from runtime_jobs.validators import validate_name
from workers.registry.tokens import has_token_shape

MAX_SECRET_LENGTH: Final = 4_096
RETRY_SECONDS: Final = 5  # after which a repository that was just added may have its mirror


@dataclass(frozen=True)
class GitAccess:
    """A repository that the caller may read.

    Attributes:
        mirror: The path of its mirror.
        client: What limits count the request for: a runner, a token, or a network.
    """

    mirror: Path
    client: str


def authorize(request: HttpRequest, owner: str, name: str) -> GitAccess:
    """Return the repository of a request, if its credentials permit to read it. In a thread: it asks the database.

    Args:
        request: The request, without its body.
        owner: The owner in the path.
        name: The name in the path, without `.git`.

    Raises:
        GitRefusal: 400, 401, 403, 404, 429, or 503 as long as there is no mirror.
    """
    _require_own_host(request)
    secret = _secret_of(request)
    if secret is None:
        repository, client = _public_repository(owner, name), rate_limit_key(request)
    elif has_token_shape(secret):
        reader = _reader_of(secret, request)
        repository, client = _repository_of_reader(reader, owner, name), reader.key
    else:
        repository, client = _repository_of_job(secret, owner, name)
    try:
        return GitAccess(require_mirror(repository), client)
    except MirrorMissing as error:
        raise GitRefusal(503, str(error), headers={"Retry-After": str(RETRY_SECONDS)}) from None


def _public_repository(owner: str, name: str) -> Repository:
    repository = _find(owner, name)
    if repository is None or repository.is_private:
        raise unauthorized()
    return repository


def _repository_of_reader(reader: ClientPrincipal, owner: str, name: str) -> Repository:
    repository = _find(owner, name)
    if repository is None or (repository.is_private and not reader.sees(repository.project.organization.slug)):
        raise not_found()
    return repository


def _repository_of_job(token: str, owner: str, name: str) -> tuple[Repository, str]:
    """Return the repository of a checkout token, and the runner. Even a public one of another job is not found."""
    grant = verify_checkout_token(token)
    if grant is None:
        raise unauthorized("The credentials are not valid, or the job has ended.")
    repository = _find(owner, name)
    if repository is None or repository.pk != grant.repository_id:
        raise not_found()
    return repository, f"runner:{grant.runner_id}"


def _require_own_host(request: HttpRequest) -> None:
    """Refuse what Django's middleware would refuse or redirect. A redirect would send the credentials twice."""
    try:
        request.get_host()
    except DisallowedHost:
        raise GitRefusal(400, "The server is not reached under this name (ALLOWED_HOSTS).") from None
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        raise GitRefusal(403, "Use https.")


def _secret_of(request: HttpRequest) -> str | None:
    """Return the password of a Basic or the token of a Bearer header, or None without a header.

    Raises:
        GitRefusal: 401; the header is malformed or too long.
    """
    header = request.META.get("HTTP_AUTHORIZATION")
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    secret = value.strip()
    if scheme.lower() == "basic":
        try:
            _, _, secret = base64.b64decode(secret, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            secret = ""
    elif scheme.lower() != "bearer":
        secret = ""
    if not 0 < len(secret) <= MAX_SECRET_LENGTH:
        raise unauthorized("The Authorization header is not valid: Basic with a token as the password is needed.")
    return secret


def _reader_of(token: str, request: HttpRequest) -> ClientPrincipal:
    """Return the client of an API token that may read jobs.

    Raises:
        GitRefusal: 401, 403 or 429.
    """
    try:
        principal = authenticate_bearer(f"Bearer {token}", network=rate_limit_key(request))
    except Throttled as error:
        seconds = max(1, round(getattr(error, "wait", None) or 1))
        raise GitRefusal(429, "Too many invalid tokens.", headers={"Retry-After": str(seconds)}) from None
    except AuthenticationFailed:
        raise unauthorized("The token is not valid.") from None
    if not isinstance(principal, ClientPrincipal):
        raise GitRefusal(403, "A worker may not read repositories by git. Use an API token.")
    if Scope.JOBS_READ not in principal.scopes:
        raise GitRefusal(403, f"The scope {Scope.JOBS_READ} is required, and this token does not have it.")
    return principal


def _find(owner: str, name: str) -> Repository | None:
    if validate_name(owner) is not None or validate_name(name) is not None:
        return None
    rows = Repository.objects.select_related("project__organization").alias(
        lower_owner=Lower("owner"), lower_name=Lower("name")
    )
    return rows.filter(lower_owner=owner.lower(), lower_name=name.lower()).first()
