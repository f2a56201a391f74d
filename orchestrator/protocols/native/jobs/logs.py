"""Response of `GET …/jobs/{job_id}/logs`."""

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from orchestrator.http.asgi.streams import CountedResponse, registry
from orchestrator.http.auth.credentials import credential_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.selectors import job_logs
from runtime_jobs.models import Job

TEXT = "text/plain; charset=utf-8"


class PlainTextRenderer(BaseRenderer):
    """Declares that a view answers text/plain, for `Accept` and the OpenAPI document. The view builds the text."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return str(data).encode()


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
    is_asgi = isinstance(request._request, ASGIRequest)  # noqa: SLF001 DRF has no name for it
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
        stream = registry.admit(
            credential_of(request, org_slug=job.org_slug),
            "follow" if follow else "read",
            authorization=request.META.get("HTTP_AUTHORIZATION", ""),
        )
        response = CountedResponse(job_logs.stream(job.job_ulid, follow=follow), stream=stream, content_type=TEXT)
    else:
        response = StreamingHttpResponse(job_logs.stored(job.job_ulid), content_type=TEXT)
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response
