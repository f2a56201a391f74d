"""Views of `/runs/{runId}/…`: follow the log, list and download artifacts, extend the lease. A run is a job."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.artifacts.addresses import download_url
from orchestrator.artifacts.uploads import with_confirmed
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import worker_session
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS, StrictQueryMixin
from orchestrator.http.asgi.server_sent_events import PING_SECONDS, with_pings
from orchestrator.http.asgi.stream_responses import EVENTS, EventStreamRenderer, can_stream, unbuffered
from orchestrator.http.asgi.streams import CountedResponse, registry
from orchestrator.http.auth.callers import client_of, worker_of
from orchestrator.http.auth.credentials import credential_of
from orchestrator.http.auth.permissions import HasScope, IsWorker
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.runs import openapi, serializers, wire
from orchestrator.protocols.stella.visible_jobs import attempts_of, job_ulid_of, newest_attempt
from orchestrator.services.heartbeat import renew
from orchestrator.step_logs import job_log_events
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.models.tenants import Scope

NO_ARTIFACT = "The run has no artifact with this name, or it has expired."


class OrchestrationRunViewSet(StrictQueryMixin, GenericViewSet):
    """The log and the artifacts of the runs that the caller may see, and heartbeats of the worker of a run."""

    http_method_names = ["get", "head", "post"]
    schema = StellaSchema()
    filter_backends: list[Any] = []

    def query_parameters(self) -> frozenset[str]:
        return {"follow_log": frozenset({"after"}), "list_artifacts": LIST_PARAMETERS}.get(self.action, frozenset())

    def get_permissions(self) -> list[Any]:
        return [IsWorker()] if self.action == "heartbeat" else [HasScope(Scope.ORCH_READ)]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    @openapi.FOLLOW_LOG
    def follow_log(self, request: Request, run_id: str) -> HttpResponseBase:
        """Follow the log of the newest attempt as Server-Sent Events: `chunk`, `step` and `end`."""
        job = newest_attempt(client_of(request), run_id)
        if request.method == "HEAD":
            return unbuffered(HttpResponse(content_type=EVENTS))
        if not can_stream(request):
            detail = "This server process cannot stream events. Send the request to a process that serves config.asgi."
            raise ApiError(501, "follow_unavailable", detail)
        stream = registry.admit(
            credential_of(request, org_slug=job.org_slug, scope=Scope.ORCH_READ),
            "events",
            authorization=request.META.get("HTTP_AUTHORIZATION", ""),
        )
        last_id = request.headers.get("Last-Event-ID") or request.query_params.get("after", "")
        content = with_pings(_log_events(job.job_ulid, last_id))
        return unbuffered(CountedResponse(content, stream=stream, content_type=EVENTS))

    @openapi.LIST_RUN_ARTIFACTS
    def list_artifacts(self, request: Request, run_id: str) -> Response:
        """List the complete artifacts of all attempts, newest first."""
        attempts = {job.job_ulid: job for job in attempts_of(client_of(request), run_id)}
        page = self.paginate_queryset(_artifacts(list(attempts.values())))
        rows = with_confirmed(page or [])
        return self.get_paginated_response([wire.serialize_artifact(row, attempts[row.job_id]) for row in rows])

    @openapi.DOWNLOAD_RUN_ARTIFACT
    def download_artifact(self, request: Request, run_id: str, name: str) -> HttpResponseBase:
        """Redirect to the content of the newest artifact with this name."""
        named = _artifacts(attempts_of(client_of(request), run_id)).filter(name=name.replace("\0", ""))
        found = with_confirmed(named.order_by("-id")[:1])
        if not found:
            raise NotFound(NO_ARTIFACT)
        file_name = found[0].name.rpartition("/")[2]
        return HttpResponseRedirect(download_url(found[0], file_name=file_name, now=timezone.now()))

    @openapi.RENEW_RUN_LEASE
    def heartbeat(self, request: Request, run_id: str) -> Response:
        """Extend a lease of the calling worker on the run. The response contains the cancel request."""
        validated, worker = parse(serializers.RunHeartbeatInput, body_of(request)), worker_of(request)
        lease_ulid = validated["leaseId"]
        if not is_id(lease_ulid, "rtl") or not _is_lease_of_run(lease_ulid, run_id):
            raise StaleLease("unknown_lease")
        renewed = renew(
            lease_ulid=lease_ulid,
            worker=worker,
            phase=validated["phase"],
            progress=wire.build_progress(validated["progress"]),
            session=worker_session(request),
        )
        return Response(wire.serialize_heartbeat(renewed.job, renewed.lease, renewed.now))


class OrchestrationRunLogViewSet(OrchestrationRunViewSet):
    """The log of a run, which is a stream of events."""

    renderer_classes = [JSONRenderer, EventStreamRenderer]


async def _log_events(job_ulid: str, last_id: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(job_log_events.events(job_ulid, last_id, idle_seconds=PING_SECONDS)) as batches:
        async for batch in batches:
            yield wire.serialize_log_events(batch)


def _is_lease_of_run(lease_ulid: str, run_id: str) -> bool:
    """Return whether a lease is on an attempt of the run. The job of a lease never changes."""
    return Lease.objects.filter(lease_ulid=lease_ulid, job__root_job_ulid=job_ulid_of(run_id)).exists()


def _artifacts(attempts: list[Job]) -> QuerySet[StoredArtifact]:
    """Return the artifacts of these attempts that have not expired."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return StoredArtifact.objects.filter(unexpired, job__in=[job.job_ulid for job in attempts], is_abandoned=False)
