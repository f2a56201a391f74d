"""Restricts pools to those that a caller may see. A pool has no owner: it serves every project in it."""

from django.conf import settings
from django.db.models import Q, QuerySet

from orchestrator.http.auth.principals import ClientPrincipal, WorkerPrincipal
from runtime_jobs.models import Project
from workers.models import Pool


def pools_visible_to(caller: ClientPrincipal | WorkerPrincipal) -> QuerySet[Pool]:
    """Return a worker's own pool, for clients those with an enabled project of their organizations, for staff all."""
    if isinstance(caller, WorkerPrincipal):
        return Pool.objects.filter(pk=caller.worker.pool_id)
    if caller.organizations is None:
        return Pool.objects.all()
    projects = Project.objects.filter(organization__slug__in=caller.organizations, enabled=True)
    used = set(projects.values_list("pool", flat=True))
    return Pool.objects.filter(Q(slug__in=used) | (Q(slug=settings.DEFAULT_POOL) if "" in used else Q(pk=None)))
