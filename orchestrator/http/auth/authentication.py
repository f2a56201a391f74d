"""Authenticates callers: bearer tokens for programs and workers, the session for people.

A refusal is a 401 without further details.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.http.client_ip import rate_limit_key
from runtime_jobs.models import ApiToken, Organization
from runtime_jobs.prepared_queries import PreparedQuery, Sql, fetch_all
from workers.models import Pool, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import API_PREFIX, digest_of, has_runner_key_shape, has_token_shape

CHALLENGE = 'Bearer realm="runtime-orchestrator"'
SEEN_EVERY = timedelta(seconds=5)
MAX_TOUCHED = 10_000
_touched: dict[int, float] = {}  # by the key of the worker: when this process updated `last_seen_at`


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


_WITH_POOL = "JOIN workers_pool pool ON pool.id = t.pool_id WHERE t.digest"
_WITH_ORGANIZATION = "JOIN runtime_jobs_organization organization ON organization.id = t.organization_id"
_VALID = "t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())"
# One digest has one plan for all values; for an array PostgreSQL plans at each call.
_WORKER = PreparedQuery(WorkerRow, f"{_WITH_POOL} = %s")
_WORKERS = PreparedQuery(WorkerRow, f"{_WITH_POOL} = ANY (%s)")
_TOKEN = PreparedQuery(ApiTokenRow, f"{_WITH_ORGANIZATION} WHERE t.digest = %s AND {_VALID}")
_TOKENS = PreparedQuery(ApiTokenRow, f"{_WITH_ORGANIZATION} WHERE t.digest = ANY (%s) AND {_VALID}")
# A row that a claim has locked is left out. Rows are locked in one order, so that two calls cannot wait for each other.
_TOUCH = """
    UPDATE workers_worker SET last_seen_at = clock_timestamp() WHERE id IN (
        SELECT id FROM workers_worker
         WHERE id = ANY (%s) AND (last_seen_at IS NULL OR last_seen_at < clock_timestamp() - %s)
         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id
"""
refusals = FailedAuthThrottle()


class BearerToken(BaseAuthentication):
    """Authenticates by `Authorization: Bearer`, with at most one query by SHA-256.

    Tokens are `rto_api_…`, `rto_worker_…`, and keys of runners, which are workers: `bencher_runner_…`.
    """

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
    (found,) = authenticate_bearers([(header, network)], now=now)
    if isinstance(found, Exception):
        raise found
    return found


def authenticate_bearers(
    callers: Sequence[tuple[str, str]], *, now: float | None = None
) -> list[Principal | Throttled | AuthenticationFailed]:
    """Return the caller of each header and network, or its refusal, with at most one query for each kind of token.

    Arguments and errors are those of `authenticate_bearer`.
    """
    digests = [digest_of(header.partition(" ")[2]) for header, _ in callers]
    results: dict[int, Principal | Throttled | AuthenticationFailed] = {}
    while len(results) < len(callers):
        turn: list[int] = []
        sought: dict[str, str] = {}  # tokens of the right shape by their digests
        tried: Counter[str] = Counter()  # by network, at most as many as may turn out to be invalid
        for place, (header, network) in enumerate(callers):
            if place in results:
                continue
            may_try = _wait(network, digests[place], tried=tried[network]) is None
            if not may_try and tried[network]:
                continue  # in the next turn, which knows how many were invalid
            turn.append(place)
            tried[network] += may_try
            scheme, _, token = header.partition(" ")
            has_shape = has_token_shape(token) or has_runner_key_shape(token)
            if may_try and scheme.lower() == "bearer" and has_shape:
                sought[digests[place]] = token
        found = _principals_of(sought, now)
        results |= {place: _accepted(found.get(digests[place]), digests[place], callers[place][1]) for place in turn}
    return [results[place] for place in range(len(callers))]


def _accepted(principal: Principal | None, digest: str, network: str) -> Principal | Throttled | AuthenticationFailed:
    if principal is not None:
        refusals.accept(digest)
        return principal
    if (wait := _wait(network, digest)) is not None:
        return Throttled(wait=wait)
    refusals.count(network)
    return AuthenticationFailed("The token is not valid.")


def _wait(network: str, digest: str, *, tried: int = 0) -> float | None:
    return refusals.wait(network, digest, limit=settings.BAD_TOKENS_PER_MINUTE - tried)


def _principals_of(tokens: Mapping[str, str], now: float | None) -> dict[str, Principal]:
    """Return the callers of valid tokens by digest, from the cache, else from the database."""
    read_at = time.monotonic() if now is None else now
    found = {digest: principal for digest in tokens if (principal := principals.get(digest, now=read_at)) is not None}
    unread = {digest: token for digest, token in tokens.items() if digest not in found}
    if not unread:
        return found
    generation = principals.generation
    of_clients = [digest for digest, token in unread.items() if token.startswith(API_PREFIX)]
    of_workers = [digest for digest in unread if digest not in of_clients]
    read = (_read_clients(of_clients) if of_clients else {}) | (_read_workers(of_workers) if of_workers else {})
    for digest, (principal, seconds_left) in read.items():
        found[digest] = principal
        seconds = min(settings.AUTH_CACHE_SECONDS, seconds_left)
        # What a transaction reads may be uncommitted.
        if seconds > 0 and not connection.in_atomic_block:
            principals.put(digest, principal, valid_until=read_at + seconds, generation=generation)
    return found


def _read_clients(digests: list[str]) -> dict[str, tuple[ClientPrincipal, float]]:
    """Return the clients of valid API tokens by digest, with the seconds until the token expires."""
    found = {}
    for row in _TOKEN.all(*digests) if len(digests) == 1 else _TOKENS.all(digests):
        expires_at = row.token.expires_at
        seconds_left = math.inf if expires_at is None else (expires_at - row.now).total_seconds()
        found[row.token.digest] = client_of_token(row.token), seconds_left
    return found


def _read_workers(digests: list[str]) -> dict[str, tuple[WorkerPrincipal, float]]:
    """Return the workers of valid tokens by digest, and update when they were seen last."""
    found, to_touch = {}, []
    for row in _WORKER.all(*digests) if len(digests) == 1 else _WORKERS.all(digests):
        worker = row.worker
        if worker.state in {WorkerState.REVOKED, WorkerState.ARCHIVED}:
            continue
        if (
            worker.last_seen_at is None or worker.last_seen_at < row.now - SEEN_EVERY
        ):  # most calls send no further query
            to_touch.append(worker)
        found[worker.digest] = WorkerPrincipal(worker), math.inf
    if to_touch:
        touch_last_seen(*to_touch)
    return found


def touch_last_seen(*workers: Worker) -> None:
    """Update `last_seen_at` of workers, at most every five seconds. This process then asks no earlier either."""
    now = time.monotonic()
    due = [worker.pk for worker in workers if _touched.get(worker.pk, -math.inf) < now - SEEN_EVERY.total_seconds()]
    touched = fetch_all(_TOUCH, [due, SEEN_EVERY]) if due else ()
    if len(_touched) > MAX_TOUCHED:
        _touched.clear()
    _touched.update((key, now) for (key,) in touched)


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
