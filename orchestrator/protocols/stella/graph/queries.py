"""The queries: lists and single objects, read and rendered as the REST API does it.

Each field may be null, so that one that is refused leaves the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import strawberry
from django_filters.utils import translate_validation

from orchestrator.core.idempotency import key_of
from orchestrator.core.principals import ClientPrincipal
from orchestrator.events.envelopes import envelope_of
from orchestrator.events.pages import Place
from orchestrator.events.place_tokens import InvalidPlace, encode_place
from orchestrator.events.search import find_events
from orchestrator.http.api.pagination import KeysetRows
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.limits.quota_use import QuotaRows, quota_uses
from orchestrator.protocols.stella.dashboard.wire import serialize_dashboard
from orchestrator.protocols.stella.events.parameters import (
    UNKNOWN_PLACE,
    audience_of,
    event_filter_of,
    known_place,
)
from orchestrator.protocols.stella.graph.cursors import ListCursors
from orchestrator.protocols.stella.graph.dashboard_objects import (
    DashboardObject,
    QuotaObject,
    QuotaPageObject,
    SourcePageObject,
)
from orchestrator.protocols.stella.graph.event_objects import EventPageObject
from orchestrator.protocols.stella.graph.job_objects import JobDetailObject, JobPageObject
from orchestrator.protocols.stella.graph.job_trees import read_job_trees
from orchestrator.protocols.stella.graph.object_types import Limit
from orchestrator.protocols.stella.graph.selections import selected_jobs
from orchestrator.protocols.stella.jobs import wire
from orchestrator.protocols.stella.jobs.filters import OrchestrationJobFilters
from orchestrator.protocols.stella.jobs.pages import in_blocked_lanes, index_parts, read_root_page
from orchestrator.protocols.stella.quotas.names import resolve_quota
from orchestrator.protocols.stella.quotas.wire import serialize_tenant_quota
from orchestrator.protocols.stella.serializers import JOB_TYPES_OR_ALL
from orchestrator.protocols.stella.sources.wire import serialize_source
from orchestrator.protocols.stella.tenants import tenants_of
from orchestrator.protocols.stella.visible_jobs import MISSING, is_uuid, newest_attempt, newest_attempts
from orchestrator.selectors.dashboard import read_dashboard
from orchestrator.selectors.sources import STATUSES, SourceRows
from runtime_jobs.errors import NotFound
from runtime_jobs.models.jobs import JobQuerySet
from runtime_jobs.orchestration_status import OrchestrationStatus


@dataclass(frozen=True)
class GraphContext:
    """The context of the resolvers.

    Attributes:
        caller: The caller, limited to the tenants in which it has `orch:read`.
    """

    caller: ClientPrincipal


Info = strawberry.Info[GraphContext, None]


def place_of(after: str | None) -> Place | None:
    """Return the place of the argument `after`, or None for None.

    Raises:
        ApiError: The place is malformed or in the future.
    """
    if after is None:
        return None
    try:
        return known_place(after)
    except InvalidPlace:
        raise invalid_query("after", UNKNOWN_PLACE) from None


@strawberry.type(name="Query", description="What the dashboard displays.")
class QueryRoot:
    """The fields of queries."""

    @strawberry.field(
        graphql_type=JobPageObject | None,
        description="Jobs, the newest first. The filters are those of `GET /api/jobs`.",
    )
    def jobs(
        self,
        info: Info,
        *,
        first: Limit,
        after: str | None = None,
        tenant: str | None = None,
        job_type: str | None = None,
        status: str | None = None,
        priority: str | None = None,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        replay_of: strawberry.ID | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> dict[str, Any]:
        given = {
            "tenant": tenant,
            "jobType": job_type,
            "status": status,
            "priority": priority,
            "correlationId": correlation_id,
            "idempotencyKey": idempotency_key,
            "replayOf": replay_of,
            "createdAfter": created_after,
            "createdBefore": created_before,
        }
        filters = {name: value for name, value in given.items() if value is not None}
        cursors = ListCursors("jobs", filters)
        key = cursors.decode(after)
        tenants = tenants_of(info.context.caller, tenant)
        jobs = _filtered(newest_attempts(tenants), filters)
        if status == OrchestrationStatus.THROTTLED:
            jobs = in_blocked_lanes(jobs, tenants)
        parts = index_parts(status, tenants, job_type)
        page = read_root_page(jobs, status=status, parts=parts, size=first, after=key)
        found = read_job_trees(page.roots, selected_jobs(info, "results"))
        return _page(found, cursors.encode(page.next_key))

    @strawberry.field(graphql_type=JobDetailObject | None, description="One job by the id of its first attempt.")
    def job(self, info: Info, job_id: strawberry.ID) -> dict[str, Any]:
        if not is_uuid(job_id):
            raise NotFound(MISSING)
        newest = newest_attempt(info.context.caller, job_id)
        found = read_job_trees([newest.root_job_ulid], selected_jobs(info))
        if not found:  # deleted meanwhile
            raise NotFound(MISSING)
        request = wire.serialize_request(newest, key_of(newest.root_job_ulid))
        return found[0] | request | {"result": wire.serialize_result(newest)}

    @strawberry.field(
        graphql_type=EventPageObject | None, description="Events after a place, the oldest first, as `GET /api/events`."
    )
    def events(
        self,
        info: Info,
        *,
        first: Limit,
        after: str | None = None,
        tenant: str | None = None,
        job_types: list[str] | None = None,
        event_types: list[str] | None = None,
        job_id: strawberry.ID | None = None,
    ) -> dict[str, Any]:
        caller = info.context.caller
        audience = audience_of(caller, tenant)
        wanted = event_filter_of(caller, job_types=job_types, event_types=event_types, job_id=job_id)
        place = place_of(after) or Place(0)
        found = find_events(place, organizations=audience, matches=wanted.matches, limit=first)
        return {
            "results": [envelope_of(event) for event in found.events],
            "place": encode_place(found.place),
            "isComplete": found.is_complete,
        }

    @strawberry.field(
        graphql_type=QuotaPageObject | None,
        description="Quotas by tenant, the newest tenant first, whether or not a limit is set.",
    )
    def quotas(
        self,
        info: Info,
        *,
        first: Limit,
        after: str | None = None,
        tenant: str | None = None,
        job_type: str | None = None,
    ) -> dict[str, Any]:
        cursors = ListCursors("quotas", {"tenant": tenant, "jobType": job_type})
        _require_one_of("jobType", job_type, JOB_TYPES_OR_ALL)
        key, tenants = cursors.decode(after), tenants_of(info.context.caller, tenant)
        rows = QuotaRows(tenants) if job_type is None else QuotaRows(tenants, (job_type,))
        return _keyset_page(rows, key, first, serialize_tenant_quota, cursors)

    @strawberry.field(graphql_type=QuotaObject | None, description="One quota by its id, `{tenant}:{jobType}`.")
    def quota(self, info: Info, id: strawberry.ID) -> dict[str, Any]:  # noqa: A002 the member of the object
        resolved = resolve_quota(info.context.caller, id)
        return serialize_tenant_quota(quota_uses([resolved])[0])

    @strawberry.field(
        graphql_type=SourcePageObject | None,
        description="Sources by tenant, the newest tenant first, whether or not they are restricted.",
    )
    def sources(
        self,
        info: Info,
        *,
        first: Limit,
        after: str | None = None,
        tenant: str | None = None,
        status: str | None = None,
    ) -> dict[str, Any]:
        cursors = ListCursors("sources", {"tenant": tenant, "status": status})
        _require_one_of("status", status, STATUSES)
        key, tenants = cursors.decode(after), tenants_of(info.context.caller, tenant)
        return _keyset_page(SourceRows(tenants, status), key, first, serialize_source, cursors)

    @strawberry.field(
        graphql_type=DashboardObject | None,
        description="The numbers of now and of the last hour, as `GET /api/dashboard/metrics`.",
    )
    def dashboard(self, info: Info, tenant: str | None = None) -> dict[str, Any]:
        tenants = tenants_of(info.context.caller, tenant)
        return serialize_dashboard(read_dashboard(tenants), tenants)


def _filtered(jobs: JobQuerySet, filters: Mapping[str, str]) -> JobQuerySet:
    """Return the jobs that the filters of the REST API select.

    Raises:
        ValidationError: A value is not valid.
    """
    if empty := next((name for name, value in filters.items() if not value), None):
        raise invalid_query(empty, "The value is empty. Send a value, or omit the argument.")
    found = OrchestrationJobFilters(data=dict(filters), queryset=jobs)
    if not found.is_valid():
        raise translate_validation(found.errors)
    selected: JobQuerySet = found.qs
    return selected


def _require_one_of(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise invalid_query(name, f"Must be one of: {', '.join(known)}.")


def _keyset_page(
    rows: KeysetRows, key: Any, size: int, serialize: Callable[[Any], dict[str, Any]], cursors: ListCursors
) -> dict[str, Any]:
    """Return the page of rows after a key."""
    found = rows.fetch(key, size + 1, backward=False)  # one more: whether a page follows
    page = found[:size]
    following = cursors.encode(page[-1].key) if len(found) > size else None
    return _page([serialize(row) for row in page], following)


def _page(results: list[dict[str, Any]], following: str | None) -> dict[str, Any]:
    return {"results": results, "next": following}
