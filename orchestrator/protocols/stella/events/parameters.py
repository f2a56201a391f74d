"""Parameters of events: whose events, which of them, and after which place."""

from collections.abc import Collection
from typing import Final

from rest_framework.request import Request

from orchestrator.core.principals import ClientPrincipal
from orchestrator.events.channels import Audience, EventFilter
from orchestrator.events.pages import Place, is_future
from orchestrator.events.place_tokens import InvalidPlace, decode_place
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.tenants import tenants_of
from orchestrator.protocols.stella.visible_jobs import attempts_of, is_uuid
from runtime_jobs.errors import NotFound
from runtime_jobs.event_types import EVENT_TYPES
from runtime_jobs.specs import JOB_TYPES

FILTERS: Final = frozenset({"jobType", "eventType", "jobId", "tenant"})
MAX_VALUES: Final = 20  # of one filter, separated by commas
LAST_EVENT_ID: Final = "Last-Event-ID"
UNKNOWN_PLACE: Final = "Must be a place that this API has returned."


def audience_of(caller: ClientPrincipal, tenant: str | None) -> Audience:
    """Return the organizations whose events the caller requests; None: all, and those of the installation.

    Raises:
        NotFound: The tenant does not exist or is not visible, or there is none that the caller may see.
    """
    tenants = tenants_of(caller, tenant)
    if tenants is None:
        return None
    if not tenants:
        raise NotFound("There is no tenant that you may see.")
    return frozenset(tenants)


def event_filter_of(
    caller: ClientPrincipal,
    *,
    job_types: Collection[str] | None,
    event_types: Collection[str] | None,
    job_id: str | None,
) -> EventFilter:
    """Return the filter of these values; None is any value.

    Raises:
        ApiError: `invalid_query`.
        NotFound: `job_id` is no job that the caller may see.
    """
    for name, values in (("jobType", job_types), ("eventType", event_types)):
        if values is not None and not 0 < len(values) <= MAX_VALUES:
            raise invalid_query(name, f"At least 1 value and at most {MAX_VALUES} values are allowed.")
    if unknown := sorted(set(job_types or ()).difference(JOB_TYPES)):
        raise invalid_query("jobType", f"Unknown job type {unknown[0][:50]}. Known: {', '.join(JOB_TYPES)}.")
    if unknown := sorted(set(event_types or ()).difference(EVENT_TYPES)):
        raise invalid_query("eventType", f"Unknown event type {unknown[0][:50]}. Known: {', '.join(EVENT_TYPES)}.")
    return EventFilter(
        None if job_types is None else frozenset(job_types),
        None if event_types is None else frozenset(event_types),
        None if job_id is None else _root_job_id(caller, job_id),
    )


def _root_job_id(caller: ClientPrincipal, job_id: str) -> str:
    if not is_uuid(job_id):
        raise invalid_query("jobId", "Must be a UUID.")
    return attempts_of(caller, job_id)[0].root_job_ulid


def query_audience(request: Request) -> Audience:
    """Return the audience that the query of a request names. Raises as `audience_of`."""
    return audience_of(client_of(request), request.query_params.get("tenant"))


def query_filter(request: Request) -> EventFilter:
    """Return the filter in the query of a request. Raises as `event_filter_of`."""
    return event_filter_of(
        client_of(request),
        job_types=_values(request, "jobType"),
        event_types=_values(request, "eventType"),
        job_id=request.query_params.get("jobId"),
    )


def _values(request: Request, name: str) -> list[str] | None:
    text = request.query_params.get(name)
    return None if text is None else text.split(",")


def place_after(request: Request, *, header: bool = False) -> Place | None:
    """Return the place in the query or, before that, in the header `Last-Event-ID`; None without one.

    Args:
        request: The request.
        header: The operation reads the header.

    Raises:
        ApiError: The place is malformed or in the future.
    """
    text = request.headers.get(LAST_EVENT_ID) if header else None
    if text:
        try:
            return known_place(text)
        except InvalidPlace:
            detail = f"The header {LAST_EVENT_ID} is not valid."
            raise ApiError(400, "invalid", detail, errors={LAST_EVENT_ID: [UNKNOWN_PLACE]}) from None
    text = request.query_params.get("after")
    if text is None:
        return None
    try:
        return known_place(text)
    except InvalidPlace:
        raise invalid_query("after", UNKNOWN_PLACE) from None


def known_place(text: str) -> Place:
    """Return the place of a text.

    Raises:
        InvalidPlace: The text is no place, or a place that this database has not reached.
    """
    place = decode_place(text)
    if is_future(place):
        raise InvalidPlace
    return place
