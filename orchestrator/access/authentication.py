"""Who is it: bearer tokens for programs and workers, the session for people. A refusal says nothing more than 401."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import Q
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from orchestrator.access.principals import Client, WorkerCaller, client_of_person, client_of_token
from runtime_jobs.columns import ClockTimestamp
from runtime_jobs.models import ApiToken
from workers.models import Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import API_PREFIX, digest_of, has_token_shape

SEEN_EVERY = timedelta(seconds=5)


class BearerToken(BaseAuthentication):
    """`Authorization: Bearer rto_api_…` or `rto_worker_…`: one look-up by SHA-256."""

    def authenticate_header(self, _request: Request) -> str:
        return 'Bearer realm="runtime-orchestrator"'

    def authenticate(self, request: Request) -> tuple[Client | WorkerCaller, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        _refuse_floods(request)
        scheme, _, token = header.partition(" ")
        principal = _principal_of(token) if scheme.lower() == "bearer" and has_token_shape(token) else None
        if principal is None:
            _count_refusal(request)
            raise AuthenticationFailed("The token is not valid.")
        return principal, None


def _principal_of(token: str) -> Client | WorkerCaller | None:
    if token.startswith(API_PREFIX):
        live = Q(expires_at__isnull=True) | Q(expires_at__gt=ClockTimestamp())
        found = ApiToken.objects.select_related("organization").filter(
            live, digest=digest_of(token), revoked_at__isnull=True
        )
        return next((client_of_token(row) for row in found), None)
    worker = Worker.objects.select_related("pool").filter(digest=digest_of(token)).first()
    if worker is None or worker.state == WorkerState.REVOKED:
        return None
    _see(worker)
    return WorkerCaller(worker)


def _see(worker: Worker) -> None:
    """Keep `last_seen_at`, without a write for each of its calls."""
    long_ago = Q(last_seen_at__isnull=True) | Q(last_seen_at__lt=ClockTimestamp() - SEEN_EVERY)
    Worker.objects.filter(long_ago, pk=worker.pk).update(last_seen_at=ClockTimestamp())


def _refusals_of(request: Request) -> str:
    return f"refused-tokens:{request.META.get('REMOTE_ADDR', '')}"


def _refuse_floods(request: Request) -> None:
    if cache.get(_refusals_of(request), 0) >= settings.BAD_TOKENS_PER_MINUTE:
        raise Throttled(wait=60)


def _count_refusal(request: Request) -> None:
    cache.add(_refusals_of(request), 0, timeout=60)
    cache.incr(_refusals_of(request))


class BrowserSession(SessionAuthentication):
    """The admin's session, with a CSRF token for whatever changes something."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        found = super().authenticate(request)
        return None if found is None else (client_of_person(found[0]), None)
