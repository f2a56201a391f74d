"""Views of `/v1/limits` (read, set, change, remove, pause, resume, throttle) and `/v1/quotas`."""

from collections.abc import Callable
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.http.api.headers import idempotent_request, if_match_versions
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.limits import actions, openapi, serializers
from orchestrator.protocols.native.limits.actions import TERMS, limit_response, set_limit
from orchestrator.protocols.native.limits.targets import limit_target, resolve_target
from orchestrator.protocols.native.limits.wire import serialize_limit, serialize_quota
from runtime_jobs.errors import Conflict, LimitNotEditable, NotFound, OperatorOnly, VersionConflict
from runtime_jobs.models import Organization
from runtime_jobs.models.tenants import Scope

# Kinds of limits that this API does not change, and what to do instead.
NOT_EDITABLE = {
    LimitKind.PLAN: "A limit of kind plan follows the plan of the organization. Change the plan.",
    LimitKind.BREAKER: "A limit of kind breaker belongs to a circuit breaker. Reset it with POST /v1/breakers/reset.",
    LimitKind.PAUSE: "A limit of kind pause is changed with POST /v1/limits/pause and removed with /v1/limits/resume.",
    LimitKind.THROTTLE: "A limit of kind throttle is changed with POST /v1/limits/throttle; per_hour null removes it.",
    LimitKind.SOURCE_ADDRESS: "A limit of kind source_address follows the plan, which allows one job per address.",
    LimitKind.CONCURRENCY: "A limit of kind concurrency follows the jobs that name its key.",
}
SCOPES = {"list": Scope.ORCH_READ, "retrieve": Scope.ORCH_READ} | dict.fromkeys(
    ("pause", "resume", "throttle"), Scope.ORCH_OPERATE
)


class LimitFilters(django_filters.FilterSet):
    """Filters of `GET /v1/limits`."""

    org_slug = django_filters.CharFilter()
    kind = django_filters.ChoiceFilter(choices=[(str(kind), str(kind)) for kind in LimitKind])
    scope = django_filters.ChoiceFilter(choices=[(str(scope), str(scope)) for scope in LimitScope])

    class Meta:
        model = Limit
        fields: list[str] = []


class LimitViewSet(OrganizationViewSet):
    """Limits of the organizations that the caller may see. Operators also see limits of pools and addresses."""

    organization_slug = "org_slug"
    parameters = {"destroy": frozenset({"reason"})}
    lookup_field = "pk"
    lookup_url_kwarg = "limit_id"
    lookup_value_regex = openapi.LIMIT_ID_PATTERN
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = LimitFilters

    def get_permissions(self) -> list[Any]:
        return [HasScope(SCOPES.get(self.action, Scope.ORCH_QUOTA))]

    def all_rows(self) -> QuerySet[Limit]:
        return Limit.objects.counted()

    @openapi.LIST_LIMITS
    def list(self, request: Request) -> Response:
        """List limits, newest first, each with the number of running jobs and the time of the next possible start."""
        now = timezone.now()
        return self.list_rows(lambda limit: serialize_limit(limit, now))

    @openapi.GET_LIMIT
    def retrieve(self, request: Request, limit_id: str) -> Response:
        """Return one limit. Its version is in the ETag."""
        return limit_response(self.get_object())

    @openapi.CREATE_LIMIT
    def create(self, request: Request) -> Response:
        """Set a new limit: on concurrency of an organization or project, on starts per hour, or on emergency jobs."""
        body = serializers.NewLimitInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        target = limit_target(client_of(request), body.validated_data)
        idempotency = idempotent_request(request, "create limit", body_of(request))
        limit, headers = _create_limit(request, target, body.validated_data, idempotency)
        return limit_response(limit, status=201, Location=f"/v1/limits/{limit.pk}", **headers)

    @openapi.CHANGE_LIMIT
    def partial_update(self, request: Request, limit_id: str) -> Response:
        """Change the terms of a limit. Running jobs above a lowered limit continue."""
        body = serializers.ChangeLimitInput(data=body_of(request))
        body.is_valid(raise_exception=True)
        limit = self._editable_limit(request)
        changed = serializers.require_terms_of_kind(limit.kind, body.validated_data)
        terms = {name: getattr(limit, name) for name in TERMS if getattr(limit, name) is not None} | changed
        return limit_response(_change(request, limit, terms))

    @openapi.REMOVE_LIMIT
    def destroy(self, request: Request, limit_id: str) -> Response:
        """Remove a limit."""
        query = serializers.RemoveLimitQuery(data=request.query_params.dict())
        if not query.is_valid():
            raise invalid_query(
                "reason", f"This parameter is required, with 1 to {serializers.MAX_REASON_LENGTH} characters."
            )
        return limit_response(_change(request, self._editable_limit(request), query.validated_data))

    @openapi.PAUSE
    @action(detail=False, methods=["post"])
    def pause(self, request: Request) -> Response:
        """Stop starting these jobs until `until`, or until they are resumed. Running jobs continue."""
        return self._act(request, serializers.PauseInput, actions.pause)

    @openapi.RESUME
    @action(detail=False, methods=["post"])
    def resume(self, request: Request) -> Response:
        """Remove a pause, so that the jobs start again."""
        return self._act(request, serializers.ResumeInput, actions.resume)

    @openapi.THROTTLE
    @action(detail=False, methods=["post"])
    def throttle(self, request: Request) -> Response:
        """Limit the starts per hour of these jobs temporarily, in addition to their other limits."""
        return self._act(request, serializers.ThrottleInput, actions.throttle)

    def _act(self, request: Request, serializer: Any, act: Callable[..., Response]) -> Response:
        body = serializer(data=body_of(request))
        body.is_valid(raise_exception=True)
        target = resolve_target(client_of(request), body.validated_data["source"])
        return act(request, target, body.validated_data)

    def _editable_limit(self, request: Request) -> Limit:
        """Return the limit of the URL.

        Raises:
            OperatorOnly: Only an operator may change it.
            LimitNotEditable: This API does not change limits of its kind.
        """
        limit: Limit = self.get_object()
        if not client_of(request).is_operator and (limit.is_an_operators or limit.kind == LimitKind.PLAN):
            raise OperatorOnly("This limit was set by an operator; only an operator can change or remove it.")
        if instead := NOT_EDITABLE.get(LimitKind(limit.kind)):
            raise LimitNotEditable(instead)
        return limit


def _change(request: Request, limit: Limit, validated: dict[str, Any]) -> Limit | None:
    kind, versions = LimitKind(limit.kind), if_match_versions(request)
    return set_limit(request, kind, LimitTarget.of_limit(limit), validated, if_versions=versions)


def _create_limit(
    request: Request, target: LimitTarget, validated: dict[str, Any], idempotency: IdempotentRequest | None
) -> tuple[Limit, dict[str, str]]:
    """Return the new limit, or the limit that an earlier request with the same key has created, with its headers.

    Raises:
        Conflict: There is a limit of this kind already.
    """
    if first := idempotency and idempotency.lookup():
        return _replayed(first)
    kind = LimitKind(validated["kind"])
    try:
        limit = set_limit(request, kind, target, validated, if_versions={0}, idempotency=idempotency)
    except VersionConflict:
        if first := idempotency and idempotency.lookup():
            return _replayed(first)  # a concurrent request with the same key
        scope = "project" if kind == LimitKind.PROJECT else "job type"
        raise Conflict(
            f"There is a limit of kind {kind} for {target.org_slug} and {scope} {target.key} already. "
            f"Change it with PATCH /v1/limits/{{limit_id}}."
        ) from None
    assert limit is not None  # noqa: S101 it has terms
    return limit, {}


def _replayed(pk: str) -> tuple[Limit, dict[str, str]]:
    limit = Limit.objects.filter(pk=pk).first()
    if limit is None:
        raise NotFound("The limit that this Idempotency-Key created was removed. Use another key for a new limit.")
    return limit, {"Idempotency-Replayed": "true"}


class QuotaViewSet(OrganizationViewSet):
    """Submit quotas of the organizations that the caller may see."""

    organization_slug = "slug"
    http_method_names = ["get", "head"]
    filter_backends: list[Any] = []

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    def all_rows(self) -> QuerySet[Organization]:
        return Organization.objects.select_related("plan")

    @openapi.LIST_QUOTAS
    def list(self, request: Request) -> Response:
        """List organizations, newest first, each with the submit quota of its plan and the number of waiting jobs."""
        return self.page_of(self.get_queryset(), serialize_quota)
