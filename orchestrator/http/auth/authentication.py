"""Authenticates callers: bearer tokens for programs and workers, the session for people.

A refusal is a 401 without further details.
"""

import math
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied, Throttled
from rest_framework.request import Request

from orchestrator.core.principal_cache import Principal, principals
from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal, client_of_person, client_of_token
from orchestrator.http.auth.throttling import FailedAuthThrottle
from orchestrator.http.client_ip import rate_limit_key
from runtime_jobs.models import ApiToken, Organization
from runtime_jobs.prepared_queries import PreparedQuery, Sql, fetch_all
from workers.models import Pool, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import API_PREFIX, digest_of, has_token_shape

CHALLENGE = 'Bearer realm="runtime-orchestrator"'
SEEN_EVERY = timedelta(seconds=5)


@dataclass(frozen=True)
class WorkerRow:
    """A worker with its pool, and the database's clock."""

    worker: Worker
    pool: Pool
    now: Annotated[datetime, Sql("clock_timestamp()")]


@dataclass(frozen=True)
class ApiTokenRow:
    """A valid API token with its organization, and the database's clock."""

    token: ApiToken
    organization: Organization
    now: Annotated[datetime, Sql("clock_timestamp()")]


_WORKER = PreparedQuery(WorkerRow, "JOIN workers_pool pool ON pool.id = t.pool_id WHERE t.digest = %s")
_TOKEN = PreparedQuery(
    ApiTokenRow,
    "JOIN runtime_jobs_organization organization ON organization.id = t.organization_id WHERE t.digest = %s"
    " AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())",
)
_TOUCH = """
    UPDATE workers_worker SET last_seen_at = clock_timestamp()
     WHERE id = %s AND (last_seen_at IS NULL OR last_seen_at < clock_timestamp() - %s) RETURNING id
"""
refusals = FailedAuthThrottle()


class BearerToken(BaseAuthentication):
    """Authenticates by `Authorization: Bearer rto_api_…` or `rto_worker_…`, with at most one query by SHA-256."""

    def authenticate_header(self, _request: Request) -> str:
        return CHALLENGE

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        return authenticate_bearer(header, network=rate_limit_key(request)), None


def authenticate_bearer(header: str, *, network: str, now: float | None = None) -> Principal:
    """Return the caller that an `Authorization` header identifies.

    Args:
        header: The value of the header.
        network: The client's network, by which invalid tokens are counted.
        now: Seconds on the monotonic clock, for the cache; by default the current ones.

    Raises:
        Throttled: The network has sent too many invalid tokens.
        AuthenticationFailed: The token is not valid.
    """
    scheme, _, token = header.partition(" ")
    digest = digest_of(token)
    wait = refusals.wait(network, digest, limit=settings.BAD_TOKENS_PER_MINUTE)
    if wait is not None:
        raise Throttled(wait=wait)
    principal = _principal_of(token, digest, now) if scheme.lower() == "bearer" and has_token_shape(token) else None
    if principal is None:
        refusals.count(network)
        raise AuthenticationFailed("The token is not valid.")
    refusals.accept(digest)
    return principal


def _principal_of(token: str, digest: str, now: float | None) -> Principal | None:
    """Return the caller of a token from the cache, else from the database."""
    read_at = time.monotonic() if now is None else now
    if (cached := principals.get(digest, now=read_at)) is not None:
        return cached
    generation = principals.generation
    found = _read_client(digest) if token.startswith(API_PREFIX) else _read_worker(digest)
    if found is None:
        return None
    principal, seconds_left = found
    seconds = min(settings.AUTH_CACHE_SECONDS, seconds_left)
    # What a transaction reads may be uncommitted.
    if seconds > 0 and not connection.in_atomic_block:
        principals.put(digest, principal, valid_until=read_at + seconds, generation=generation)
    return principal


def _read_client(digest: str) -> tuple[ClientPrincipal, float] | None:
    """Return the client of a valid API token and the seconds until the token expires."""
    row = _TOKEN.first(digest)
    if row is None:
        return None
    expires_at = row.token.expires_at
    return client_of_token(row.token), math.inf if expires_at is None else (expires_at - row.now).total_seconds()


def _read_worker(digest: str) -> tuple[WorkerPrincipal, float] | None:
    row = _WORKER.first(digest)
    if row is None or row.worker.state == WorkerState.REVOKED:
        return None
    worker = row.worker
    if worker.last_seen_at is None or worker.last_seen_at < row.now - SEEN_EVERY:  # most calls send no further query
        touch_last_seen(worker)
    return WorkerPrincipal(worker), math.inf


def touch_last_seen(worker: Worker) -> None:
    """Update `last_seen_at` of a worker, at most every five seconds."""
    fetch_all(_TOUCH, [worker.pk, SEEN_EVERY])


class BrowserSession(SessionAuthentication):
    """Authenticates by the admin's session, with a CSRF token for changes, and never for pages of another site."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        _refuse_other_sites(request)
        return client_of_person(found[0]), None


def _refuse_other_sites(request: Request) -> None:
    """Refuse requests of other sites: their scripts can make a browser send the cookie with a GET and open a stream."""
    if is_of_other_site(request) or request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise PermissionDenied("A browser session is accepted only for requests from pages of this server.")


def is_of_other_site(request: HttpRequest | Request) -> bool:
    """Return whether the request has an `Origin` that is none of this server."""
    origin = request.headers.get("Origin")
    own = {f"{request.scheme}://{request.get_host()}", *settings.CSRF_TRUSTED_ORIGINS}
    return origin is not None and origin not in own
