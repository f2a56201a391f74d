"""Views of `/api/limits`: pause, resume and throttle a source."""

from typing import Any

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.models import LimitKind
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.limits.job_limits import LimitTerms, set_limit
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.limits import openapi, serializers
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.sources.names import MISSING, target_of
from orchestrator.protocols.stella.sources.wire import serialize_source
from orchestrator.selectors.sources import read_source
from runtime_jobs.errors import NotFound
from runtime_jobs.models.tenants import Scope


class SourceLimitViewSet(StrictQueryMixin, GenericViewSet):
    """Pauses and throttles of the sources that the caller may see. Running jobs continue."""

    http_method_names = ["post"]
    schema = StellaSchema()
    pagination_class = None
    filter_backends: list[Any] = []

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_QUOTA)]

    @openapi.PAUSE_JOB_SOURCE
    @action(detail=False, methods=["post"])
    def pause(self, request: Request) -> Response:
        """Stop starting the jobs of a source until `until`, or until it is resumed."""
        return self._act(request, serializers.PauseSourceInput, LimitKind.PAUSE, max_active=0)

    @openapi.RESUME_JOB_SOURCE
    @action(detail=False, methods=["post"])
    def resume(self, request: Request) -> Response:
        """Remove the pause of a source. 404 if it has none."""
        return self._act(request, serializers.ResumeSourceInput, LimitKind.PAUSE)

    @openapi.THROTTLE_JOB_SOURCE
    @action(detail=False, methods=["post"])
    def throttle(self, request: Request) -> Response:
        """Limit the starts per hour of a source temporarily, in addition to its quota."""
        return self._act(request, serializers.ThrottleSourceInput, LimitKind.THROTTLE)

    def _act(self, request: Request, serializer: Any, kind: LimitKind, max_active: int | None = None) -> Response:
        body = serializer(data=body_of(request))
        body.is_valid(raise_exception=True)
        terms = body.validated_data
        caller = client_of(request)
        target = target_of(caller, terms.pop("sourceId"))
        if "maxPerHour" in terms:
            terms["per_hour"] = terms.pop("maxPerHour")
        cause = cause_of(request, terms.pop("reason"))
        set_limit(kind, target, LimitTerms(max_active, **terms), cause=cause)
        source = read_source(target)
        if source is None:
            raise NotFound(MISSING)
        return Response(serialize_source(source))
