"""`/v1/ingest/…`: workers upload runs, programs of the same organization read them."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from orchestrator.http.api.headers import LEASE_FENCE, lease_fence
from orchestrator.http.api.openapi import Problem
from orchestrator.http.auth.permissions import IsWorker, requires_scope
from orchestrator.http.errors.problems import MEDIA_TYPE, ApiError
from orchestrator.ingest.errors import unprocessable, with_error
from orchestrator.ingest.examples import UPLOAD
from orchestrator.ingest.models import Run
from orchestrator.ingest.runs import Stored, store
from orchestrator.ingest.serializers import RunUpload
from runtime_jobs.models.tenants import Scope
from workers.models import Worker


class RunTaken(serializers.Serializer):
    """The answer to an upload. `payload_match` is only there when it is false."""

    run_id = serializers.CharField()
    job_id = serializers.CharField()
    created = serializers.BooleanField()
    received_at = serializers.DateTimeField()
    payload_match = serializers.BooleanField(required=False)


class RunShown(serializers.Serializer):
    run_id = serializers.CharField()
    job_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    worker_id = serializers.CharField()
    received_at = serializers.DateTimeField()
    payload_sha256 = serializers.CharField()
    payload = RunUpload()


class RunUploadView(APIView):
    """The reference ingest."""

    permission_classes = [IsWorker]

    def handle_exception(self, exc: Exception) -> Response:
        return with_error(super().handle_exception(unprocessable(exc)))

    @extend_schema(
        operation_id="upload_run",
        request=RunUpload,
        responses={
            201: RunTaken,
            200: OpenApiResponse(RunTaken, description="The lease has its run already: the same run id."),
            (409, MEDIA_TYPE): OpenApiResponse(Problem, description="The caller has no live lease of the job."),
            (422, MEDIA_TYPE): OpenApiResponse(Problem, description="Not a valid run; `errors` names the fields."),
        },
        parameters=[
            OpenApiParameter("Idempotency-Key", location=OpenApiParameter.HEADER, description="The job's id, if sent."),
            OpenApiParameter(
                LEASE_FENCE,
                OpenApiTypes.INT64,
                OpenApiParameter.HEADER,
                description="The `fence` of the lease under which the job ran. Without it the caller's newest lease.",
            ),
        ],
        examples=[UPLOAD],
    )
    def post(self, request: Any) -> Response:
        """Store the run of a job under the caller's live lease. A repeat returns the stored run's id."""
        worker, payload = _worker(request), request.data
        RunUpload(data=payload).is_valid(raise_exception=True)
        if payload["metadata"]["worker_id"] != worker.worker_id:
            raise ApiError(403, "worker_mismatch", "This token is another worker's.")
        if request.headers.get("Idempotency-Key", payload["metadata"]["job_id"]) != payload["metadata"]["job_id"]:
            raise serializers.ValidationError({"Idempotency-Key": "It is not metadata.job_id."})
        stored = store(payload, worker=worker, fence=lease_fence(request))
        return Response(_taken(stored), status=201 if stored.created else 200)


def _worker(request: Any) -> Worker:
    """`IsWorker` has seen to it that a worker calls."""
    return request.user.worker


def _taken(stored: Stored) -> dict[str, Any]:
    run = stored.run
    answer = {"run_id": run.run_id, "job_id": run.job_id, "created": stored.created, "received_at": run.received_at}
    return answer if stored.matches else answer | {"payload_match": False}


class RunView(GenericAPIView):
    """Runs of the organizations that the caller may see; what it may not see does not exist."""

    permission_classes = [requires_scope(Scope.JOBS_READ)]
    filter_backends: list[Any] = []
    pagination_class = None
    lookup_field = "run_id"

    def get_queryset(self) -> QuerySet[Run]:
        if getattr(self, "swagger_fake_view", False):
            return Run.objects.none()
        caller: Any = self.request.user
        mine = caller.organizations
        return Run.objects.all() if mine is None else Run.objects.filter(org_slug__in=mine)

    @extend_schema(operation_id="get_run", responses=RunShown)
    def get(self, _request: Request, run_id: str) -> Response:  # noqa: ARG002 the queryset's filter takes it from the URL
        """One run, as it was uploaded."""
        run = self.get_object()
        names = (
            "run_id",
            "job_id",
            "org_slug",
            "project_slug",
            "worker_id",
            "received_at",
            "payload_sha256",
            "payload",
        )
        return Response({name: getattr(run, name) for name in names})
