"""Liveness, readiness and metrics of a process, for load balancers, Prometheus and operators."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import wraps
from hmac import compare_digest
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from leases.sql_functions import are_functions_current
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.core.db_scope import release_connection_after
from orchestrator.http.client_ip import is_direct_loopback
from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.metrics import registry
from runtime_jobs.applied_migrations import are_migrations_pending
from runtime_jobs.db_errors import is_database_unavailable
from runtime_jobs.db_time import database_now

View = Callable[[HttpRequest], HttpResponse]
ALLOWED_METHODS = ("GET", "HEAD")
READINESS_SECONDS = 1.0  # from the start of a check: its result serves all requests of this time
_are_migrations_applied = threading.Event()


def read_only(view: View) -> View:
    """Allow GET and HEAD, and answer any other method with a problem document."""

    @csrf_exempt
    @wraps(view)
    def wrapped(request: HttpRequest) -> HttpResponse:
        if request.method in ALLOWED_METHODS:
            return view(request)
        headers = {"Allow": ", ".join(ALLOWED_METHODS)}
        refusal = ApiError(405, "method_not_allowed", "This path accepts GET and HEAD only.", headers=headers)
        return as_response(refusal, request)

    return wrapped


def liveness_document() -> dict[str, Any]:
    """Return the document that says that the process responds.

    Nothing else is checked: an orchestrator of containers must not restart web processes because a database is down.
    """
    return {"status": "alive"}


def readiness_document(problems: list[str]) -> tuple[int, dict[str, Any]]:
    """Return status and body of `/readyz`: 200, or 503 with the names of the failed checks."""
    return (503, {"status": "unready", "wrong": problems}) if problems else (200, {"status": "ready", "wrong": []})


@read_only
def alive(_request: HttpRequest) -> HttpResponse:
    """Answer `/healthz` under WSGI. Under ASGI the router does."""
    return JsonResponse(liveness_document())


@read_only
def ready(_request: HttpRequest) -> HttpResponse:
    """Answer `/readyz` under WSGI. Under ASGI the router does."""
    status, document = readiness_document(find_problems())
    return JsonResponse(document, status=status)


@read_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer Prometheus: with METRICS_TOKEN as its bearer token, or from this machine if that setting is empty."""
    if not _may_scrape(request):
        challenge = {"WWW-Authenticate": 'Bearer realm="metrics"'}
        return as_response(ApiError(401, "unauthenticated", "A valid token is needed.", headers=challenge), request)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_scrape(request: HttpRequest) -> bool:
    """Return whether the caller may read the metrics. The token of a tenant is not enough: they cover all tenants."""
    if settings.METRICS_TOKEN:
        sent = request.headers.get("Authorization", "")
        return compare_digest(sent.encode(), f"Bearer {settings.METRICS_TOKEN}".encode())
    return is_direct_loopback(request)


class Readiness:
    """Checks readiness at most once in READINESS_SECONDS, in a thread of its own, for all requests of an event loop.

    Many probes cost one check, and busy request threads delay none of them. The age of a result counts from the start
    of its check: a slow check, or a busy event loop that receives it late, does not make it newer.
    """

    def __init__(self, check: Callable[[], list[str]] | None = None) -> None:
        self._check = release_connection_after(check or find_problems)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        self._running: asyncio.Future[list[str]] | None = None
        self._problems: list[str] = []
        self._valid_until = 0.0

    async def problems(self) -> list[str]:
        """Return the names of the failed checks: of the last check if it is recent, else of a new one."""
        if time.monotonic() < self._valid_until:
            return self._problems
        if self._running is None:
            self._running = asyncio.ensure_future(self._refreshed())
        return await asyncio.shield(self._running)  # a client that disconnects does not end the check of the others

    async def _refreshed(self) -> list[str]:
        began = time.monotonic()
        try:
            self._problems = await asyncio.get_running_loop().run_in_executor(self._executor, self._check)
            self._valid_until = began + READINESS_SECONDS
        finally:
            self._running = None
        return self._problems


def find_problems() -> list[str]:
    """Return the names of the failed checks: `database`, `overloaded`, `migrations`, `sql_functions` or `clock`.

    `database` also means that the sessions of this process cannot write. `overloaded` means that it found no free
    database connection, or no answer in time.
    """
    try:
        return _find_problems()
    except (DatabaseError, InterfaceError) as error:
        return ["database" if is_database_unavailable(error) else "overloaded"]


def _find_problems() -> list[str]:
    if not _can_write():
        return ["database"]
    if not _is_migrated():
        return ["migrations"]
    if not are_functions_current():
        return ["sql_functions"]
    return [] if _has_recent_beat() else ["clock"]


def _can_write() -> bool:
    """Return whether the session can write. One that cannot is closed: the next one may lead to another server."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('transaction_read_only') = 'off'")
        [can_write] = cursor.fetchone()
    if not can_write:
        connection.connection.close()
    return bool(can_write)


def _is_migrated() -> bool:
    """Return whether all migrations are applied. Reading them is slow, so a positive result is kept."""
    if not _are_migrations_applied.is_set() and not are_migrations_pending(connection):
        _are_migrations_applied.set()
    return _are_migrations_applied.is_set()


def _has_recent_beat() -> bool:
    """Return whether a scheduler process has written its beat lately."""
    beat = ClockBeat.objects.order_by("-beat_at").first()
    max_age = timedelta(seconds=settings.CLOCK_SILENT_AFTER_SECONDS)
    return beat is not None and database_now() - beat.beat_at < max_age
