"""Views of events: pages of a tenant, pages of one job, and the stream of the dashboard."""

import re
from typing import Any, Final

from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import Place, events_of_job
from orchestrator.events.place_tokens import encode_place
from orchestrator.events.search import find_events
from orchestrator.http.api.query_parameters import StrictQueryMixin, invalid_query
from orchestrator.http.asgi.stream_responses import EventStreamRenderer
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.events import openapi
from orchestrator.protocols.stella.events.parameters import (
    FILTERS,
    place_after,
    query_audience,
    query_filter,
)
from orchestrator.protocols.stella.events.stream import dashboard_stream
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.visible_jobs import attempts_of
from runtime_jobs.models.tenants import Scope

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
_NUMBER = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_EVENT_OF_JOB = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,17})", re.ASCII)


class EventView(StrictQueryMixin, APIView):
    """Base of the views of events."""

    schema = StellaSchema()
    http_method_names = ["get", "head"]
    parameters: frozenset[str]

    def query_parameters(self) -> frozenset[str]:
        return self.parameters

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_READ)]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler


class EventListView(EventView):
    """The events of the tenants that the caller may see, in order."""

    parameters = FILTERS | {"after", "limit"}

    @openapi.LIST_EVENTS
    def get(self, request: Request) -> Response:
        """List envelopes after a place, the oldest first. `place` is where the next call continues."""
        audience = query_audience(request)
        found = find_events(
            place_after(request) or Place(0),
            organizations=audience,
            matches=query_filter(request).matches,
            limit=_limit(request),
        )
        place = encode_place(found.place)
        return _page(request, [envelope_of(event) for event in found.events], place, has_more=not found.is_complete)


class JobEventListView(EventView):
    """The events of one job, of all its attempts."""

    parameters = frozenset({"after", "limit"})

    @openapi.LIST_JOB_EVENTS
    def get(self, request: Request, job_id: str) -> Response:
        """List the envelopes of a job by attempt and sequence, the oldest first."""
        after, limit = _after_event(request), _limit(request)
        attempts = [(job.job_ulid, job.attempt) for job in attempts_of(client_of(request), job_id)]
        events = events_of_job(attempts, after=after, rows=limit + 1)
        shown = events[:limit]
        if shown:
            after = shown[-1].attempt or 0, shown[-1].seq or 0
        place = f"{after[0]}.{after[1]}"
        return _page(request, [envelope_of(event) for event in shown], place, has_more=len(events) > limit)


class DashboardEventsView(EventView):
    """The events of the tenants that the caller may see, as they happen."""

    parameters = FILTERS | {"after"}
    renderer_classes = [JSONRenderer, EventStreamRenderer]

    @openapi.STREAM_DASHBOARD_EVENTS
    def get(self, request: Request) -> Any:
        """Follow events as Server-Sent Events: first `snapshot`, then one envelope for each event."""
        audience = query_audience(request)
        return dashboard_stream(request, audience, query_filter(request), after=place_after(request, header=True))


def _page(request: Request, results: list[dict[str, Any]], place: str, *, has_more: bool) -> Response:
    following = replace_query_param(request.build_absolute_uri(), "after", place) if has_more else None
    return Response({"next": following, "previous": None, "results": results, "place": place})


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not _NUMBER.fullmatch(text) or int(text) > MAX_LIMIT:
        raise invalid_query("limit", f"Must be a number from 1 to {MAX_LIMIT}.")
    return int(text)


def _after_event(request: Request) -> tuple[int, int]:
    """Return the attempt and sequence of the last event of the page before."""
    found = _EVENT_OF_JOB.fullmatch(request.query_params.get("after", "0.0"))
    if found is None:
        raise invalid_query("after", "Must be a place that this API has returned.")
    return int(found[1]), int(found[2])
