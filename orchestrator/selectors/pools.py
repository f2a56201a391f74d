"""Selects the pools that a caller may see, and reads the load of a pool."""

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from orchestrator.core.principals import ClientPrincipal, WorkerPrincipal
from orchestrator.selectors.pending_reasons.workers import SILENT_AFTER
from runtime_jobs.models import Project
from workers.models import Pool

MAX_COUNTED = 10_000  # waiting jobs; beyond it the exact number changes no decision
MAX_LEASES = 20_000  # newest leases of all pools, among which the starts of the last minute are counted


class PoolLoad(NamedTuple):
    """The load of a pool.

    Attributes:
        queued: Queued jobs, counted up to `MAX_COUNTED`.
        servable: Queued jobs that no limit blocks: more workers would start them. Counted up to `MAX_COUNTED`.
        running: Open leases.
        idle_slots: Free slots of the active workers.
        active: Workers that are online and claim.
        silent: Workers that should claim and are offline.
        draining: Workers that finish their jobs and claim no more.
        maintenance: Workers in maintenance.
        oldest_wait_seconds: The age of the oldest queued job, or None.
        starts_per_minute: Leases of the last minute.
        measured_at: The time of the database.
    """

    queued: int
    servable: int
    running: int
    idle_slots: int
    active: int
    silent: int
    draining: int
    maintenance: int
    oldest_wait_seconds: float | None
    starts_per_minute: int
    measured_at: datetime

    @property
    def is_capped(self) -> bool:
        """Whether `queued` has reached the limit of counting."""
        return self.queued >= MAX_COUNTED


def pool_load(pool: str) -> PoolLoad:
    """Read the load of a pool with one statement of at most 2 seconds."""
    values: dict[str, Any] = {
        "pool": pool,
        "max_counted": MAX_COUNTED,
        "max_leases": MAX_LEASES,
        "silent": SILENT_AFTER,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '2s'")
        cursor.execute(_sql(), values)
        return PoolLoad(*cursor.fetchone())


@cache
def _sql() -> str:
    return (Path(__file__).parent / "sql" / "load.sql").read_text()


def pools_visible_to(caller: ClientPrincipal | WorkerPrincipal) -> QuerySet[Pool]:
    """Return the pools that a caller may see.

    A worker sees its own pool. A client sees the pools of the enabled projects of its organizations, or all pools if it
    is not bound to organizations.
    """
    if isinstance(caller, WorkerPrincipal):
        return Pool.objects.filter(pk=caller.worker.pool_id)
    if caller.organizations is None:
        return Pool.objects.all()
    projects = Project.objects.filter(organization__slug__in=caller.organizations, enabled=True)
    used = set(projects.values_list("pool", flat=True))
    return Pool.objects.filter(Q(slug__in=used) | (Q(slug=settings.DEFAULT_POOL) if "" in used else Q(pk=None)))
