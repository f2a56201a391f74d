"""Selects the pools that a caller may see. A pool has no owner: it serves all projects that name it."""

from django.conf import settings
from django.db.models import Q, QuerySet

from orchestrator.http.auth.principals import ClientPrincipal, WorkerPrincipal
from runtime_jobs.models import Project
from workers.models import Pool


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
