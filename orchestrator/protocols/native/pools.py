"""`/v1/pools`: the pools that the caller may know of, and how much each has to do, for autoscalers."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import caller_of, requires_scope_or_worker
from orchestrator.protocols.native import pool_operations, wire
from orchestrator.protocols.native.requests import SLUG
from orchestrator.selectors.pool_access import pools_visible_to
from orchestrator.selectors.pool_load import PoolLoad, pool_load
from runtime_jobs.models.tenants import Scope
from workers.models import Pool


@pool_operations.OF_POOLS
class PoolViewSet(StrictQueryMixin, GenericViewSet):
    """A worker sees its own pool, a client those in which it has a project, an operator all."""

    permission_classes = [requires_scope_or_worker(Scope.ORCH_READ)]
    http_method_names = ["get", "head"]
    filter_backends: list[Any] = []
    lookup_field = "slug"
    lookup_url_kwarg = "pool"
    lookup_value_regex = SLUG

    def query_parameters(self) -> frozenset[str]:
        return frozenset({"limit", "cursor"} if self.action == "list" else ())

    def get_queryset(self) -> QuerySet[Pool]:
        if getattr(self, "swagger_fake_view", False):
            return Pool.objects.none()
        return pools_visible_to(caller_of(self.request))

    def list(self, request: Request) -> Response:
        """The pools, newest first."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response([shown(row) for row in page or []])

    @action(detail=True, pagination_class=None)
    def load(self, request: Request, pool: str) -> Response:
        """How much the pool has to do, and who is there to do it."""
        return Response(_load(pool, pool_load(self.get_object().slug)))


def shown(row: Pool) -> dict[str, Any]:
    return {
        "pool": row.slug,
        "description": row.description,
        "policy": row.policy,
        "aging": row.aging,
        "least_isolation": row.least_isolation,
    }


def _load(pool: str, load: PoolLoad) -> dict[str, Any]:
    return {
        "pool": pool,
        "queued": load.queued,
        "servable": load.servable,
        "capped": load.is_capped,
        "running": load.running,
        "idle_slots": load.idle_slots,
        "workers": {name: getattr(load, name) for name in ("active", "silent", "draining", "maintenance")},
        "oldest_wait_seconds": round(load.oldest_wait_seconds or 0, 1),
        "starts_per_minute": load.starts_per_minute,
        "at": wire.moment(load.at),
    }
