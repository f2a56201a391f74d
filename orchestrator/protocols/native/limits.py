"""`/v1/limits`: what holds jobs back, to see and to change; pause, resume and throttle of a source."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.models import Limit, LimitKind, LimitScope
from orchestrator import services
from orchestrator.http.api.filtering import OF_EVERY_LIST
from orchestrator.http.api.headers import idempotent_request, if_match_version
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin, invalid_query
from orchestrator.http.auth.permissions import requires_scope
from orchestrator.http.auth.principals import client_of
from orchestrator.protocols.native import control_operations as operations
from orchestrator.protocols.native import control_requests as requests
from orchestrator.protocols.native import control_wire, holding
from orchestrator.protocols.native.holding import operator_kwargs, shown
from orchestrator.protocols.native.subjects import require_organization, subject_of
from orchestrator.services.idempotency import IdempotentRequest
from runtime_jobs.errors import Conflict, LimitNotEditable, NotFound, OperatorOnly, VersionConflict
from runtime_jobs.models.tenants import Scope

# By kind, what changes a limit that is nobody's to set.
FOLLOWS = {
    LimitKind.PLAN: "It follows the organization's plan.",
    LimitKind.BREAKER: "It is a breaker's: reset that.",
    LimitKind.PAUSE: "It is a pause: resume, or pause anew.",
    LimitKind.THROTTLE: "It is a throttle: throttle anew, with per_hour null to end it.",
    LimitKind.SOURCE_ADDRESS: "The plan asks for it: one job at a time from an address.",
    LimitKind.CONCURRENCY: "Jobs that name its key ask for it.",
}
SCOPES = {"list": Scope.ORCH_READ, "retrieve": Scope.ORCH_READ} | dict.fromkeys(
    ("pause", "resume", "throttle"), Scope.ORCH_OPERATE
)


class LimitFilters(django_filters.FilterSet):
    org_slug = django_filters.CharFilter()
    kind = django_filters.ChoiceFilter(choices=[(str(kind), str(kind)) for kind in LimitKind])
    scope = django_filters.ChoiceFilter(choices=[(str(scope), str(scope)) for scope in LimitScope])

    class Meta:
        model = Limit
        fields: list[str] = []


class LimitViewSet(StrictQueryMixin, GenericViewSet):
    """Limits of the organizations that the caller may see; operators see those of pools and addresses, too."""

    lookup_field = "pk"
    lookup_url_kwarg = "limit_id"
    lookup_value_regex = operations.NUMBER
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = LimitFilters

    def query_parameters(self) -> frozenset[str]:
        if self.action == "list":
            return OF_EVERY_LIST | set(LimitFilters.base_filters)
        return frozenset({"reason"}) if self.action == "destroy" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [requires_scope(SCOPES.get(self.action, Scope.ORCH_QUOTA))()]

    def get_queryset(self) -> QuerySet[Limit]:
        if getattr(self, "swagger_fake_view", False):
            return Limit.objects.none()
        mine = client_of(self.request).organizations
        limits = Limit.objects.counted()
        return limits if mine is None else limits.filter(org_slug__in=mine)

    @operations.LIST_LIMITS
    def list(self, request: Request) -> Response:
        """The limits, newest first, each with what runs under it and when it lets the next one start."""
        page, at = self.paginate_queryset(self.filter_queryset(self.get_queryset())), timezone.now()
        return self.get_paginated_response([control_wire.limit(row, at) for row in page or []])

    @operations.GET_LIMIT
    def retrieve(self, request: Request, limit_id: str) -> Response:
        """One limit, with its version as ETag."""
        return shown(self.get_object())

    @operations.CREATE_LIMIT
    def create(self, request: Request) -> Response:
        """Set a limit where there is none: so many at once, so many starts an hour, so many emergencies at once."""
        body = requests.NewLimit(data=body_of(request))
        body.is_valid(raise_exception=True)
        require_organization(client_of(request), body.validated_data["org_slug"])
        idempotency = idempotent_request(request, "create limit", body_of(request))
        limit, headers = _created(request, body.validated_data, idempotency)
        return shown(limit, status=201, Location=f"/v1/limits/{limit.pk}", **headers)

    @operations.CHANGE_LIMIT
    def partial_update(self, request: Request, limit_id: str) -> Response:
        """Change the terms of the limit that was seen. What runs above a lowered one runs on."""
        body = requests.ChangeLimit(data=body_of(request))
        body.is_valid(raise_exception=True)
        row = self._settable(request)
        sent = requests.terms_for(row.kind, body.validated_data)
        terms = {name: getattr(row, name) for name in ("max_active", "per_hour", "burst")} | sent
        return shown(_set(request, _about(row), terms, if_version=if_match_version(request)))

    @operations.LIFT_LIMIT
    def destroy(self, request: Request, limit_id: str) -> Response:
        """Lift the limit that was seen."""
        asked = requests.LiftLimit(data=request.query_params.dict())
        if not asked.is_valid():
            raise invalid_query("reason", "Say why, in 1 to 500 characters.")
        row = self._settable(request)
        _set(request, _about(row), {"reason": asked.validated_data["reason"]}, if_version=if_match_version(request))
        return Response(status=204)

    @operations.PAUSE
    @action(detail=False, methods=["post"])
    def pause(self, request: Request) -> Response:
        """Start no more of these jobs until `until`, or until somebody resumes. What runs, runs on."""
        return self._hold(request, requests.Pause, holding.pause)

    @operations.RESUME
    @action(detail=False, methods=["post"])
    def resume(self, request: Request) -> Response:
        """Let paused jobs start again."""
        return self._hold(request, requests.Resume, holding.resume)

    @operations.THROTTLE
    @action(detail=False, methods=["post"])
    def throttle(self, request: Request) -> Response:
        """Let only so many of these jobs start in an hour for a while, besides their other limits."""
        return self._hold(request, requests.Throttle, holding.throttle)

    def _hold(self, request: Request, shape: Any, act: Any) -> Response:
        body = shape(data=body_of(request))
        body.is_valid(raise_exception=True)
        subject = subject_of(client_of(request), body.validated_data["source"])
        answer: Response = act(request, subject, body.validated_data)
        return answer

    def _settable(self, request: Request) -> Limit:
        """The limit that the address names, if this caller may set it."""
        row: Limit = self.get_object()
        if not client_of(request).is_operator and (row.is_an_operators or row.kind == LimitKind.PLAN):
            raise OperatorOnly("Operators set this. Ask one.")
        if follows := FOLLOWS.get(LimitKind(row.kind)):
            raise LimitNotEditable(follows)
        return row


def _about(row: Limit) -> dict[str, Any]:
    return {"kind": row.kind, "org_slug": row.org_slug, "job_type": row.key}


def _set(request: Request, about: dict[str, Any], terms: dict[str, Any], **guards: Any) -> Limit | None:
    """Call the kind's verb; without terms the limit is lifted."""
    common = {
        "org_slug": about["org_slug"],
        "job_type": about["job_type"],
        **operator_kwargs(request, terms["reason"]),
        **guards,
    }
    if about["kind"] == LimitKind.RATE:
        return services.set_rate(per_hour=terms.get("per_hour"), burst=terms.get("burst", 1), **common)
    return services.set_limit(max_active=terms.get("max_active"), kind=LimitKind(about["kind"]), **common)


def _created(
    request: Request, sent: dict[str, Any], idempotency: IdempotentRequest | None
) -> tuple[Limit, dict[str, str]]:
    """The new limit, or the one that the same request made before. Raises Conflict where there is one already."""
    if first := idempotency and idempotency.lookup():
        return _first(first)
    try:
        limit = _set(request, sent, sent, if_version=0, idempotency=idempotency)
    except VersionConflict:
        if first := idempotency and idempotency.lookup():
            return _first(first)  # the same request, at the same moment
        raise Conflict("There is such a limit already: change that one.") from None
    assert limit is not None  # noqa: S101 it has terms
    return limit, {}


def _first(pk: str) -> tuple[Limit, dict[str, str]]:
    limit = Limit.objects.filter(pk=pk).first()
    if limit is None:
        raise NotFound("That limit was lifted since.")
    return limit, {"Idempotency-Replayed": "true"}
