"""Is it alive, is it ready, how does it do: for load balancers, Prometheus and people at night."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from hmac import compare_digest

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from leases.sql_functions import are_functions_current
from orchestrator.http.client_ip import is_direct_loopback
from orchestrator.http.errors.problems import ApiError, as_response
from orchestrator.http.observability.metrics import registry
from orchestrator.models import ClockBeat
from runtime_jobs.db_errors import is_database_unavailable
from runtime_jobs.db_time import database_now

View = Callable[[HttpRequest], HttpResponse]
READING = ("GET", "HEAD")
_migrated = threading.Event()


def for_reading(view: View) -> View:
    """GET and HEAD only; anything else is told so in a problem document."""

    @csrf_exempt
    @wraps(view)
    def reading(request: HttpRequest) -> HttpResponse:
        if request.method in READING:
            return view(request)
        refusal = ApiError(405, "method_not_allowed", "Only GET.", headers={"Allow": ", ".join(READING)})
        return as_response(refusal, request)

    return reading


@for_reading
def alive(_request: HttpRequest) -> HttpResponse:
    """The process answers. Nothing else is asked: a database that is down must not get web processes killed."""
    return JsonResponse({"status": "alive"})


@for_reading
def ready(_request: HttpRequest) -> HttpResponse:
    """Database, migrations, SQL functions, clock: 200 if all are well, else 503 with what is wrong.

    `overloaded` where the database is there and this process found no connection to it, or no answer in time."""
    wrong = _wrong()
    return JsonResponse({"status": "unready" if wrong else "ready", "wrong": wrong}, status=503 if wrong else 200)


@for_reading
def metrics(request: HttpRequest) -> HttpResponse:
    """For Prometheus: with METRICS_TOKEN as its bearer token; without that setting, from this machine only."""
    if not _may_scrape(request):
        challenge = {"WWW-Authenticate": 'Bearer realm="metrics"'}
        return as_response(ApiError(401, "unauthenticated", "A valid token is needed.", headers=challenge), request)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_scrape(request: HttpRequest) -> bool:
    """No tenant's token opens this: the numbers are those of all tenants."""
    if settings.METRICS_TOKEN:
        sent = request.headers.get("Authorization", "")
        return compare_digest(sent.encode(), f"Bearer {settings.METRICS_TOKEN}".encode())
    return is_direct_loopback(request)


def _wrong() -> list[str]:
    try:
        if not _is_migrated():
            return ["migrations"]
        return _silent_clock() if are_functions_current() else ["sql_functions"]
    except (DatabaseError, InterfaceError) as error:
        return ["database" if is_database_unavailable(error) else "overloaded"]


def _is_migrated() -> bool:
    """Reading all migrations takes a while, and anybody may ask: once they are applied it is not asked again."""
    if not _migrated.is_set():
        executor = MigrationExecutor(connection)
        if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
            _migrated.set()
    return _migrated.is_set()


def _silent_clock() -> list[str]:
    beat = ClockBeat.objects.order_by("-beat_at").first()
    longest = timedelta(seconds=settings.CLOCK_SILENT_AFTER_SECONDS)
    return [] if beat and database_now() - beat.beat_at < longest else ["clock"]
