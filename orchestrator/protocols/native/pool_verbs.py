"""`/v1/pools/{pool}`: what operators do to a pool. For a tenant's program there is none of it."""

from typing import Any

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.scheduling.limits import LimitTarget
from orchestrator import services
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.permissions import IsInstallationOperator
from orchestrator.http.auth.principals import client_of
from orchestrator.protocols.native import control_operations as operations
from orchestrator.protocols.native import control_requests as requests
from orchestrator.protocols.native import holding, pools
from orchestrator.protocols.native.requests import SLUG
from orchestrator.protocols.native.subjects import pool_of
from workers.models import Pool
from workers.registry.models import PoolPolicy


class PoolVerbs(StrictQueryMixin, GenericViewSet):
    permission_classes = (IsInstallationOperator,)
    lookup_url_kwarg = "pool"
    lookup_value_regex = SLUG
    http_method_names = ["post", "patch"]
    filterset_class = None
    pagination_class = None

    @operations.CHANGE_POOL
    def partial_update(self, request: Request, pool: str) -> Response:
        """Serve the jobs of one priority strictly by age (`fifo`), or the organizations by turns (`fair`)."""
        subject, sent = self._asked(request, pool, requests.ChangePool)
        policy = PoolPolicy(sent["policy"])
        services.set_pool_policy(pool=subject.key, policy=policy, **holding.operator_kwargs(request, sent["reason"]))
        return Response(pools.shown(Pool.objects.get(slug=subject.key)))

    @operations.PAUSE_POOL
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pool: str) -> Response:
        """Let its workers start nothing more until `until`, or until somebody resumes. What runs, runs on."""
        return holding.pause(request, *self._asked(request, pool, requests.PausePool))

    @operations.RESUME_POOL
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pool: str) -> Response:
        """Let its workers start jobs again."""
        return holding.resume(request, *self._asked(request, pool, requests.Reasoned))

    @operations.THROTTLE_POOL
    @action(detail=True, methods=["post"])
    def throttle(self, request: Request, pool: str) -> Response:
        """Let only so many of its jobs start in an hour for a while."""
        return holding.throttle(request, *self._asked(request, pool, requests.ThrottlePool))

    def _asked(self, request: Request, pool: str, shape: Any) -> tuple[LimitTarget, dict[str, Any]]:
        body = shape(data=body_of(request))
        body.is_valid(raise_exception=True)
        return pool_of(client_of(request), pool), body.validated_data
