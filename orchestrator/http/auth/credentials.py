"""Credentials of open streams: what a stream was opened with, and which of them do not count any more."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import Q
from django.http import HttpRequest
from rest_framework.request import Request

from orchestrator.core.principals import ClientPrincipal, client_of_person
from orchestrator.http.auth.callers import client_of
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import ApiToken
from runtime_jobs.models.tenants import Scope


@dataclass(frozen=True)
class Credential:
    """The caller of a stream.

    Attributes:
        key: Stable name of the token or person; limits count by it.
        session_key: Of the browser's session; empty for a token.
        org_slug: The organization whose jobs are read. Empty for staff who read those of all.
        counts_for_organization: False for staff, who read on behalf of the installation.
        further_organizations: Other organizations of a member, which are read too.
        scope: The scope that reading needs.
    """

    key: str
    session_key: str
    org_slug: str
    counts_for_organization: bool
    further_organizations: tuple[str, ...] = ()
    scope: str = Scope.JOBS_READ


def credential_of(
    request: Request, *, org_slug: str, further_organizations: tuple[str, ...] = (), scope: str = Scope.JOBS_READ
) -> Credential:
    """Return the credential that opened this request, for jobs of these organizations."""
    client = client_of(request)
    is_token = client.key.startswith("token:")
    session_key = "" if is_token else request._request.session.session_key or ""  # noqa: SLF001 DRF has no name for it
    return credential_of_client(
        client, session_key=session_key, org_slug=org_slug, further_organizations=further_organizations, scope=scope
    )


def credential_of_client(
    client: ClientPrincipal,
    *,
    session_key: str,
    org_slug: str,
    further_organizations: tuple[str, ...] = (),
    scope: str = Scope.JOBS_READ,
) -> Credential:
    """Return the credential of a client, for jobs of these organizations. `session_key` is empty for a token."""
    return Credential(
        client.key,
        session_key,
        org_slug,
        counts_for_organization=not client.is_operator,
        further_organizations=further_organizations,
        scope=scope,
    )


def revoked_among(credentials: Iterable[Credential]) -> set[Credential]:
    """Return those that may not read jobs of their organizations any more; one query for all tokens."""
    found = set(credentials)
    tokens = {one for one in found if not one.session_key}
    valid = _valid_tokens({int(one.key.removeprefix("token:")) for one in tokens if one.key.startswith("token:")})
    return {one for one in tokens if one.scope not in valid.get((one.key, one.org_slug), ())} | {
        one for one in found - tokens if not _is_valid_session(one)
    }


def _valid_tokens(keys: set[int]) -> dict[tuple[str, str], list[str]]:
    """Return the scopes of valid tokens, by the key and the organization."""
    if not keys:
        return {}
    not_expired = Q(expires_at__isnull=True) | Q(expires_at__gt=ClockTimestamp())
    tokens = ApiToken.objects.filter(not_expired, pk__in=keys, revoked_at__isnull=True)
    rows = tokens.values_list("pk", "organization__slug", "scopes")
    return {(f"token:{key}", slug): scopes for key, slug, scopes in rows}


def _is_valid_session(credential: Credential) -> bool:
    """Ask as a request of that browser would: the session, the account, the password it was made with, membership."""
    request: Any = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(credential.session_key)
    user = get_user(request)
    if not user.is_authenticated or f"user:{user.pk}" != credential.key:
        return False
    client = client_of_person(user).limited_to(credential.scope)
    organizations = (credential.org_slug, *credential.further_organizations)
    return credential.scope in client.scopes and all(map(client.sees, organizations))
