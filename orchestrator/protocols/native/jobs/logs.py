"""Responses of `GET …/jobs/{job_id}/logs` and `GET …/jobs/{job_id}/logs/stream`."""

from collections.abc import AsyncGenerator

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from orchestrator.http.asgi.server_sent_events import PING_SECONDS, with_pings
from orchestrator.http.asgi.stream_responses import EVENTS, TEXT, can_stream, unbuffered
from orchestrator.http.asgi.streams import CountedResponse, registry
from orchestrator.http.auth.credentials import credential_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.selectors.job_steps import steps_of
from orchestrator.step_logs import job_log_events, job_log_reads
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Job


def log_response(job: Job, *, follow: bool, request: Request) -> HttpResponseBase:
    """Return the log as text/plain. Under ASGI the stream occupies no thread, under WSGI it occupies this one.

    Args:
        job: The job whose log is read.
        follow: Continue the stream until the job has ended.
        request: The request, whose credential is re-checked while the stream is open.

    Raises:
        ApiError: `too_many_streams`, or `follow_unavailable` under WSGI for a job that has not ended. A follower would
            occupy one of the few threads for as long as the job runs.
    """
    follow = follow and not job.is_final
    is_asgi = can_stream(request)
    if follow and not is_asgi:
        detail = (
            "This server process cannot follow the log of a job that has not ended. "
            "Send the request without `follow`, or to a process that serves config.asgi."
        )
        raise ApiError(501, "follow_unavailable", detail)
    response: HttpResponseBase
    if request.method == "HEAD":
        response = HttpResponse(content_type=TEXT)
    elif is_asgi:
        content = job_log_reads.stream(job.job_ulid, follow=follow)
        response = _counted(content, job, request, kind="follow" if follow else "read", content_type=TEXT)
    else:
        response = StreamingHttpResponse(job_log_reads.stored(job.job_ulid), content_type=TEXT)
    return unbuffered(response)


def step_log_response(job: Job, step: int, *, request: Request) -> HttpResponseBase:
    """Return the stored part of the log of one step as text/plain. A step without output has an empty log.

    Args:
        job: The job.
        step: The index of the step.
        request: The request, as in `log_response`.

    Raises:
        NotFound: The job has no such step.
        ApiError: `too_many_streams`.
    """
    if all(found.index != step for found in steps_of(job.job_ulid)):
        raise NotFound(f"The job has no step {step}.")
    if request.method == "HEAD":
        return unbuffered(HttpResponse(content_type=TEXT))
    if can_stream(request):
        content = job_log_reads.stream_step(job.job_ulid, step)
        return unbuffered(_counted(content, job, request, kind="read", content_type=TEXT))
    return unbuffered(StreamingHttpResponse(job_log_reads.stored_step(job.job_ulid, step), content_type=TEXT))


def event_response(job: Job, request: Request) -> HttpResponseBase:
    """Return the live log as Server-Sent Events, after the event that `Last-Event-ID` or `after` names.

    A page of a browser that displays the beginning of a log already cannot send the header. It does so when it connects
    again, and the header wins then.

    Args:
        job: The job whose log is followed.
        request: The request, whose credential is re-checked while the stream is open.

    Raises:
        ApiError: `too_many_streams`, or `follow_unavailable` under WSGI.
    """
    if request.method == "HEAD":
        return unbuffered(HttpResponse(content_type=EVENTS))
    if not can_stream(request):
        detail = "This server process cannot stream events. Send the request to a process that serves config.asgi."
        raise ApiError(501, "follow_unavailable", detail)
    last_id = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
    content = with_pings(job_log_events.events(job.job_ulid, last_id, idle_seconds=PING_SECONDS))
    return unbuffered(_counted(content, job, request, kind="events", content_type=EVENTS))


def _counted(
    content: AsyncGenerator[bytes, None], job: Job, request: Request, *, kind: str, content_type: str
) -> CountedResponse:
    stream = registry.admit(
        credential_of(request, org_slug=job.org_slug), kind, authorization=request.META.get("HTTP_AUTHORIZATION", "")
    )
    return CountedResponse(content, stream=stream, content_type=content_type)
