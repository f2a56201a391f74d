"""Views of `/v1/pools`: list and load for all callers, changes for operators."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.scheduling.limits import LimitTarget
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope, IsInstallationOperator, caller_of
from orchestrator.protocols.native.limits import actions
from orchestrator.protocols.native.limits.serializers import PausePoolInput, ReasonInput, ThrottlePoolInput
from orchestrator.protocols.native.limits.targets import pool_target
from orchestrator.protocols.native.pools import openapi
from orchestrator.protocols.native.pools.serializers import ChangePoolInput
from orchestrator.protocols.native.pools.wire import serialize_load, serialize_pool
from orchestrator.protocols.native.serializers import SLUG
from orchestrator.selectors.pools import pool_load, pools_visible_to
from orchestrator.services import pools
from runtime_jobs.models.tenants import Scope
from workers.models import Pool
from workers.registry.models import PoolPolicy


class PoolViewSet(StrictQueryMixin, GenericViewSet):
    """Pools that the caller may see: a worker its own, a client those of its projects, an operator all."""

    http_method_names = ["get", "head"]
    filter_backends: list[Any] = []
    lookup_field = "slug"
    lookup_url_kwarg = "pool"
    lookup_value_regex = SLUG

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ, allow_workers=True)]

    def query_parameters(self) -> frozenset[str]:
        return LIST_PARAMETERS if self.action == "list" else frozenset()

    def get_queryset(self) -> QuerySet[Pool]:
        if getattr(self, "swagger_fake_view", False):
            return Pool.objects.none()
        return pools_visible_to(caller_of(self.request))

    @openapi.LIST_POOLS
    def list(self, request: Request) -> Response:
        """List pools, newest first."""
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response([serialize_pool(pool) for pool in page or []])

    @openapi.GET_POOL_LOAD
    @action(detail=True, pagination_class=None)
    def load(self, request: Request, pool: str) -> Response:
        """Return waiting and running jobs, workers and free slots of the pool."""
        return Response(serialize_load(pool, pool_load(self.get_object().slug)))


class PoolOperationsViewSet(StrictQueryMixin, GenericViewSet):
    """Changes of a pool by operators. For any other client these paths answer 404."""

    permission_classes = (IsInstallationOperator,)
    lookup_url_kwarg = "pool"
    lookup_value_regex = SLUG
    http_method_names = ["post", "patch"]
    filterset_class = None
    pagination_class = None

    @openapi.CHANGE_POOL
    def partial_update(self, request: Request, pool: str) -> Response:
        """Set the policy: `fifo` starts the oldest job of a priority first, `fair` shares between organizations."""
        target, validated = self._read(request, pool, ChangePoolInput)
        policy = PoolPolicy(validated["policy"])
        pools.set_pool_policy(pool=target.key, policy=policy, cause=cause_of(request, validated["reason"]))
        return Response(serialize_pool(Pool.objects.get(slug=target.key)))

    @openapi.PAUSE_POOL
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pool: str) -> Response:
        """Stop starting jobs in the pool until `until`, or until it is resumed. Running jobs continue."""
        return actions.pause(request, *self._read(request, pool, PausePoolInput))

    @openapi.RESUME_POOL
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pool: str) -> Response:
        """Remove the pause of the pool."""
        return actions.resume(request, *self._read(request, pool, ReasonInput))

    @openapi.THROTTLE_POOL
    @action(detail=True, methods=["post"])
    def throttle(self, request: Request, pool: str) -> Response:
        """Limit the starts per hour of the pool temporarily."""
        return actions.throttle(request, *self._read(request, pool, ThrottlePoolInput))

    def _read(self, request: Request, pool: str, serializer: Any) -> tuple[LimitTarget, dict[str, Any]]:
        body = serializer(data=body_of(request))
        body.is_valid(raise_exception=True)
        return pool_target(client_of(request), pool), body.validated_data
