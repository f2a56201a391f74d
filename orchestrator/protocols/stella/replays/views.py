"""Views of replays: request one, read its verdict, read the manifest of a job."""

from typing import Any, Final

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from orchestrator.evidence import replays
from orchestrator.evidence.manifests import canonical_manifest, manifest_of
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replays import ReplayRequest
from orchestrator.evidence.signing_keys import sign
from orchestrator.http.api.calls import ApiAnswer, ApiCall, respond
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.query_parameters import StrictQueryMixin, invalid_query
from orchestrator.http.auth.callers import client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.stella import errors
from orchestrator.protocols.stella.openapi import StellaSchema
from orchestrator.protocols.stella.replays import openapi, wire
from orchestrator.protocols.stella.replays.serializers import ReplayInput
from orchestrator.protocols.stella.visible_jobs import attempts_of, newest_attempt
from runtime_jobs.errors import NotFinal, NotFound, NotReplayable
from runtime_jobs.models.tenants import Scope
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES

MANIFEST_TYPE: Final = "application/vnd.runtime-orchestrator.manifest+json"
NO_REPLAY: Final = "The job is no replay."


def replay(call: ApiCall, job_id: str) -> ApiAnswer:
    """Queue a replay of a job."""
    validated = parse(ReplayInput, call.body)
    root = attempts_of(client_of(call), job_id)[0].job_ulid
    request = ReplayRequest(
        root_ulid=root,
        reason=validated["reason"],
        actor=client_of(call).actor,
        priority=PRIORITIES[validated["priority"]] if validated["priority"] else None,
        is_sealed=validated["sealed"],
        source_address=call.address,
    )
    outcome = replays.replay(request, idempotency=idempotent_request(call, f"replay {root}", call.body))
    record = wire.serialize_replay_record(Replay.objects.get(job_ulid=outcome.job.job_ulid), outcome.job)
    headers = {"Location": f"/api/jobs/{record['jobId']}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    return ApiAnswer(record, 201, headers)


class OrchestrationReplayViewSet(StrictQueryMixin, GenericViewSet):
    """Replays and manifests of the jobs that the caller may see."""

    http_method_names = ["get", "head", "post"]
    schema = StellaSchema()
    filter_backends: list[Any] = []
    pagination_class = None

    def query_parameters(self) -> frozenset[str]:
        return frozenset({"signed"}) if self.action == "manifest" else frozenset()

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE if self.action == "create" else Scope.ORCH_READ)]

    def get_exception_handler(self) -> Any:
        return errors.exception_handler

    @openapi.REPLAY_JOB
    def create(self, request: Request, job_id: str) -> Response:
        """Queue a job that repeats this one, with the same input. Jobs that succeeded can be replayed, too."""
        return respond(replay, request, job_id)

    @openapi.GET_REPLAY
    def retrieve(self, request: Request, job_id: str) -> Response:
        """Return a replay with its verdict. A job that is no replay is 404."""
        first = attempts_of(client_of(request), job_id)[0]
        row = Replay.objects.defer("expected", "found").filter(job_ulid=first.job_ulid).first()
        if row is None:
            raise NotFound(NO_REPLAY)
        return Response(wire.serialize_replay(row, first))

    @openapi.GET_MANIFEST
    def manifest(self, request: Request, job_id: str) -> HttpResponseBase:
        """Return the manifest of an ended job in its canonical form (RFC 8785): inputs, environment, outputs."""
        signed = request.query_params.get("signed", "false")
        if signed not in {"true", "false"}:
            raise invalid_query("signed", "Must be true or false.")
        job = newest_attempt(client_of(request), job_id)
        if JOB_TYPES[job.job_type].manifest is None:
            raise NotReplayable(f"Jobs of type {job.job_type} have no manifest.", reasons=[])
        if not job.is_final:
            raise NotFinal("The job has not ended.", job_status=job.public_status)
        content = canonical_manifest(manifest_of(job))
        if signed == "true":
            return Response(sign(MANIFEST_TYPE, content))
        return HttpResponse(content, content_type="application/json")
