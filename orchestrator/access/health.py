"""Is it alive, is it ready: for load balancers and people at night."""

from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse

from orchestrator.models import ClockBeat
from runtime_jobs.clock import database_time


def alive(_request: HttpRequest) -> JsonResponse:
    """The process answers. Nothing else is asked: a database that is down must not get web processes killed."""
    return JsonResponse({"status": "alive"})


def ready(_request: HttpRequest) -> JsonResponse:
    """Database, migrations, clock: 200 if all are well, else 503 with what is wrong."""
    wrong = _wrong()
    return JsonResponse({"status": "unready" if wrong else "ready", "wrong": wrong}, status=503 if wrong else 200)


def _wrong() -> list[str]:
    try:
        return [*_unmigrated(), *_silent_clock()]
    except (DatabaseError, InterfaceError):
        return ["database"]


def _unmigrated() -> list[str]:
    executor = MigrationExecutor(connection)
    return ["migrations"] if executor.migration_plan(executor.loader.graph.leaf_nodes()) else []


def _silent_clock() -> list[str]:
    beat = ClockBeat.objects.order_by("-beat_at").first()
    longest = timedelta(seconds=settings.CLOCK_SILENT_AFTER_SECONDS)
    return [] if beat and database_time() - beat.beat_at < longest else ["clock"]
