"""Authenticates deliveries by their signature `X-Hub-Signature-256`, the HMAC of the raw body.

A caller without a valid signature receives no information about projects and repositories.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Q, TextField
from django.db.models.functions import Cast
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import Throttled
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.github.payload import peek, signed_body
from orchestrator.protocols.github.wire import full_name_of
from orchestrator.services.credentials import valid_webhook_secrets
from runtime_jobs.models import Project
from workers.registry.tokens import digest_of

SIGNATURE_HEADER = "X-Hub-Signature-256"
HOOK_HEADER = "X-GitHub-Hook-ID"
CHALLENGE = {"WWW-Authenticate": 'Hub-Signature-256 realm="runtime-orchestrator"'}
GOOD_SECONDS = 86400.0  # a hook may deliver once a day, and GitHub does not repeat a refused delivery
NOT_CONFIGURED_RETRY_AFTER = {"Retry-After": "3600"}
DUMMY_SECRET = "dummy"  # noqa: S105 verified if no project matches, so that the response takes the same time
_SIGNATURE = re.compile(r"sha256=([0-9a-f]{64})")
_HOOK_ID = re.compile(r"[0-9]{1,20}")

throttle = FailedAuthThrottle(good_seconds=GOOD_SECONDS)


@dataclass(frozen=True)
class VerifiedDelivery:
    """A delivery with a valid signature.

    Attributes:
        projects: Projects whose secret signed it, or all enabled projects of the repository for the installation's.
        raw: The signed bytes.
    """

    projects: tuple[Project, ...]
    raw: bytes

    is_authenticated = True
    is_worker = False


class GithubSignature(BaseAuthentication):
    """Answers 503 without any secret, 413 for a large body, and 401 without a valid signature for the repository."""

    def authenticate_header(self, _request: Request) -> str:
        return CHALLENGE["WWW-Authenticate"]

    def authenticate(self, request: Request) -> tuple[VerifiedDelivery, None]:
        """Verify the signature.

        The throttle counts by client network alone, and refuses before the body is parsed and the database is queried:
        the sender of an unsigned body chooses all of it. Customers of GitHub share its addresses, so a hook that signed
        correctly from a network is admitted until it sends a wrong signature.
        """
        network = rate_limit_key(request)
        hook = _hook_key(request, network)
        wait = throttle.wait(network, hook, limit=settings.BAD_TOKENS_PER_MINUTE)
        if wait is not None:
            raise Throttled(wait=wait)
        _require_any_secret()
        raw = signed_body(request)
        repository = full_name_of(peek(request, raw))
        verified = _verify(raw, signature_digest(request.headers.get(SIGNATURE_HEADER)), repository)
        if verified is None:
            throttle.count(network)
            throttle.withdraw(hook)
            detail = f"The header {SIGNATURE_HEADER} is missing, or its signature is wrong."
            raise ApiError(401, "unauthenticated", detail, headers=CHALLENGE)
        if hook:
            throttle.accept(hook)
        return verified, None


def _hook_key(request: Request, network: str) -> str:
    """Return the throttle key of GitHub's hook in this network, or an empty string if the delivery names no hook."""
    hook = request.headers.get(HOOK_HEADER, "")
    return digest_of(f"{network} {hook}") if _HOOK_ID.fullmatch(hook) else ""


class IsSigned(BasePermission):
    """Admits deliveries with a valid signature."""

    def has_permission(self, request: Request, _view: Any) -> bool:
        return isinstance(request.user, VerifiedDelivery)


def _require_any_secret() -> None:
    if not settings.GITHUB_WEBHOOK_SECRET and not Project.objects.filter(webhook_generation__gt=0).exists():
        detail = "No webhook secret is configured: create one for a project, or set GITHUB_WEBHOOK_SECRET."
        raise ApiError(503, "webhook_not_configured", detail, headers=NOT_CONFIGURED_RETRY_AFTER)


def _verify(raw: bytes, digest: str | None, repository: str | None) -> VerifiedDelivery | None:
    """Return the projects that the signature is valid for.

    The secret of the installation is valid for every enabled project that runs the repository, the secret of a project
    for that project.
    """
    candidates = projects_of(repository)
    installation_secret = settings.GITHUB_WEBHOOK_SECRET
    if installation_secret and signature_matches(digest, installation_secret, raw):
        return VerifiedDelivery(tuple(project for project in candidates if project.enabled), raw)
    if not candidates:
        # Without this an unknown repository would be answered faster than a known one.
        signature_matches(digest, DUMMY_SECRET, raw)
    signed = tuple(project for project in candidates if _is_signed_by(project, digest, raw))
    return VerifiedDelivery(signed, raw) if signed else None


def _is_signed_by(project: Project, digest: str | None, raw: bytes) -> bool:
    return any(signature_matches(digest, secret, raw) for secret in valid_webhook_secrets(project))


def signature_digest(header: str | None) -> str | None:
    """Return the SHA-256 digest in the header, or None.

    GitHub also sends `X-Hub-Signature` with SHA-1. Accepting it would make the check as weak as SHA-1.
    """
    match = _SIGNATURE.fullmatch(header or "")
    return match[1] if match else None


def signature_matches(digest: str | None, secret: str, raw: bytes) -> bool:
    """Return whether the secret signed these bytes, in constant time."""
    expected = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, digest or "")


def projects_of(repository: str | None) -> list[Project]:
    """Return the projects that may run the repository, enabled or not.

    The database preselects projects whose list contains the name; `Project.allows` decides.
    """
    owner, _, name = (repository or "").partition("/")
    if not name:
        return []
    preselection = Q(listed__icontains=f"{owner}/{name}") | Q(listed__icontains=f"{owner}/*")
    rows = Project.objects.annotate(listed=Cast("repositories", TextField())).filter(preselection)
    return [project for project in rows.select_related("organization").order_by("pk") if project.allows(owner, name)]


class GithubSignatureScheme(OpenApiAuthenticationExtension):
    """OpenAPI security scheme of the webhook."""

    target_class = "orchestrator.protocols.github.authentication.GithubSignature"
    name = "githubSignature"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        description = "`sha256=` and the HMAC of the raw body in lower-case hexadecimal."
        return {"type": "apiKey", "in": "header", "name": SIGNATURE_HEADER, "description": description}
