"""Who signed a delivery: GitHub, for certain projects. What is not signed is told nothing about any of them."""

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

from orchestrator.http.auth.throttling import FailedAuthThrottle
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.github import payload, signatures, wire
from orchestrator.services.credentials import valid_webhook_secrets
from runtime_jobs.models import Project
from workers.registry.tokens import digest_of

GOOD_SECONDS = 86400.0  # a hook may deliver once a day, and GitHub does not repeat what was refused
HOOK = "X-GitHub-Hook-ID"
_HOOK_FORM = re.compile(r"[0-9]{1,20}")
refusals = FailedAuthThrottle(good_seconds=GOOD_SECONDS)
CHALLENGE = {"WWW-Authenticate": 'Hub-Signature-256 realm="runtime-orchestrator"'}
LATER = {"Retry-After": "3600"}
DUMMY_SECRET = "nobody's"  # noqa: S105 compared with where no project has one, so that the time tells nothing


@dataclass(frozen=True)
class VerifiedDelivery:
    """GitHub, as it spoke for these projects. `raw` is what it signed."""

    projects: tuple[Project, ...]
    raw: bytes

    is_authenticated = True
    is_worker = False


class GithubSignature(BaseAuthentication):
    """503 without any secret, 413, then 401 for whatever is not signed by a secret that counts for its repository."""

    def authenticate_header(self, _request: Request) -> str:
        return CHALLENGE["WWW-Authenticate"]

    def authenticate(self, request: Request) -> tuple[VerifiedDelivery, None]:
        """Return the signer.

        The throttle counts by the caller's network alone, and refuses before the body is parsed and the database is
        queried: everything in an unsigned body is the sender's choice. GitHub's addresses are shared by all its
        customers, so a hook that signed correctly from there keeps being admitted, until it sends a wrong signature."""
        network = rate_limit_key(request)
        hook = _hook_of(request, network)
        wait = refusals.wait(network, hook, limit=settings.BAD_TOKENS_PER_MINUTE)
        if wait is not None:
            raise Throttled(wait=wait)
        _require_any_secret()
        raw = payload.raw_of(request)
        repository = wire.full_name_of(payload.peek(request, raw))
        signer = _signer_of(raw, signatures.digest_in(request.headers.get(signatures.HEADER)), repository)
        if signer is None:
            refusals.count(network)
            refusals.withdraw(hook)
            raise ApiError(401, "unauthenticated", "The signature is missing or wrong.", headers=CHALLENGE)
        if hook:
            refusals.accept(hook)
        return signer, None


def _hook_of(request: Request, network: str) -> str:
    """Return the key of GitHub's hook in this network, or an empty string if the delivery does not name one."""
    hook = request.headers.get(HOOK, "")
    return digest_of(f"{network} {hook}") if _HOOK_FORM.fullmatch(hook) else ""


class IsSigned(BasePermission):
    def has_permission(self, request: Request, _view: Any) -> bool:
        return isinstance(request.user, VerifiedDelivery)


def _require_any_secret() -> None:
    if not settings.GITHUB_WEBHOOK_SECRET and not Project.objects.filter(webhook_generation__gt=0).exists():
        raise ApiError(503, "webhook_not_configured", "There is no secret for this webhook yet.", headers=LATER)


def _signer_of(raw: bytes, digest: str | None, repository: str | None) -> VerifiedDelivery | None:
    """The installation's secret speaks for every project that runs the repository, a project's own for that one."""
    found = projects_of(repository)
    installation = settings.GITHUB_WEBHOOK_SECRET
    if installation and signatures.verify(digest, installation, raw):
        return VerifiedDelivery(tuple(project for project in found if project.enabled), raw)
    if not found:
        signatures.verify(
            digest, DUMMY_SECRET, raw
        )  # else an unknown repository would be answered sooner than a known one
    mine = tuple(project for project in found if _signed_by(project, digest, raw))
    return VerifiedDelivery(mine, raw) if mine else None


def _signed_by(project: Project, digest: str | None, raw: bytes) -> bool:
    return any(signatures.verify(digest, secret, raw) for secret in valid_webhook_secrets(project))


def projects_of(repository: str | None) -> list[Project]:
    """Projects that may run it, enabled or not. The database finds those whose list has these letters somewhere."""
    owner, _, name = (repository or "").partition("/")
    if not name:
        return []
    near = Q(listed__icontains=f"{owner}/{name}") | Q(listed__icontains=f"{owner}/*")
    rows = Project.objects.annotate(listed=Cast("repositories", TextField())).filter(near)
    return [project for project in rows.select_related("organization").order_by("pk") if project.allows(owner, name)]


class GithubSignatureScheme(OpenApiAuthenticationExtension):
    target_class = "orchestrator.protocols.github.authentication.GithubSignature"
    name = "githubSignature"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        about = "`sha256=` and the HMAC of the raw body, in lower-case hex."
        return {"type": "apiKey", "in": "header", "name": signatures.HEADER, "description": about}
