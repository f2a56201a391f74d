"""The endpoints `/v1/ingest/…`: workers upload runs, clients of the same organization read them."""

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
from orchestrator.http.auth.permissions import HasScope, IsWorker
from orchestrator.http.errors.problems import MEDIA_TYPE, ApiError
from orchestrator.ingest.examples import UPLOAD
from orchestrator.ingest.models import Run
from orchestrator.ingest.presenter import RunPresenter
from orchestrator.ingest.runs import StoredRun, store
from orchestrator.protocols.ingest.errors import unprocessable, with_error
from orchestrator.protocols.ingest.serializers import RunUpload
from runtime_jobs.models import Job
from runtime_jobs.models.tenants import JobTrace, Scope
from workers.models import Worker


class RunReceipt(serializers.Serializer):
    """Answers an upload. `payload_match` is present only if it is false: the repeat differs from the stored run."""

    run_id = serializers.CharField()
    job_id = serializers.CharField()
    created = serializers.BooleanField()
    received_at = serializers.DateTimeField()
    payload_match = serializers.BooleanField(required=False)


class TraceLevels(serializers.Serializer):
    """The trace that the job asks for, and the one that its worker reports. A report without a level is complete."""

    requested = serializers.ChoiceField(
        choices=JobTrace.choices, allow_null=True, help_text="Null: the job was deleted."
    )
    recorded = serializers.ChoiceField(
        choices=JobTrace.choices, help_text="Less than `requested`: the worker fell short."
    )


class RunDetail(serializers.Serializer):
    """Serializes a stored run."""

    run_id = serializers.CharField()
    job_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    worker_id = serializers.CharField()
    received_at = serializers.DateTimeField()
    payload_sha256 = serializers.CharField()
    trace = TraceLevels()
    payload = RunUpload()


class RunUploadView(APIView):
    """Receives runs from workers."""

    permission_classes = [IsWorker]

    def handle_exception(self, exc: Exception) -> Response:
        return with_error(super().handle_exception(unprocessable(exc)))

    @extend_schema(
        operation_id="upload_run",
        request=RunUpload,
        responses={
            201: RunReceipt,
            200: OpenApiResponse(RunReceipt, description="The lease already has a run: the same run id."),
            (409, MEDIA_TYPE): OpenApiResponse(Problem, description="The caller has no valid lease of the job."),
            (422, MEDIA_TYPE): OpenApiResponse(Problem, description="Not a valid run; `errors` names the fields."),
        },
        parameters=[
            OpenApiParameter("Idempotency-Key", location=OpenApiParameter.HEADER, description="The id of the job."),
            OpenApiParameter(
                LEASE_FENCE,
                OpenApiTypes.INT64,
                OpenApiParameter.HEADER,
                description="The `fence` of the lease under which the job ran. Default: the caller's newest lease.",
            ),
        ],
        examples=[UPLOAD],
    )
    def post(self, request: Any) -> Response:
        """Store the run of a job under the caller's valid lease. A repeat returns the id of the stored run."""
        worker, payload = _worker(request), request.data
        RunUpload(data=payload).is_valid(raise_exception=True)
        if payload["metadata"]["worker_id"] != worker.worker_id:
            raise ApiError(403, "worker_mismatch", "`metadata.worker_id` must be the worker that the token belongs to.")
        if request.headers.get("Idempotency-Key", payload["metadata"]["job_id"]) != payload["metadata"]["job_id"]:
            raise serializers.ValidationError({"Idempotency-Key": "Must equal `metadata.job_id`."})
        stored = store(payload, worker=worker, fence=lease_fence(request))
        return Response(_receipt(stored), status=201 if stored.created else 200)


def _worker(request: Any) -> Worker:
    """Return the calling worker. `IsWorker` has checked that the caller is one."""
    return request.user.worker


def _receipt(stored: StoredRun) -> dict[str, Any]:
    run = stored.run
    answer = {"run_id": run.run_id, "job_id": run.job_id, "created": stored.created, "received_at": run.received_at}
    return answer if stored.matches else answer | {"payload_match": False}


class RunView(GenericAPIView):
    """Returns a run of an organization that the caller may view; answers 404 to other runs."""

    filter_backends: list[Any] = []
    pagination_class = None
    lookup_field = "run_id"

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.JOBS_READ)]

    def get_queryset(self) -> QuerySet[Run]:
        if getattr(self, "swagger_fake_view", False):
            return Run.objects.none()
        caller: Any = self.request.user
        mine = caller.organizations
        return Run.objects.all() if mine is None else Run.objects.filter(org_slug__in=mine)

    @extend_schema(operation_id="get_run", responses=RunDetail)
    def get(self, _request: Request, run_id: str) -> Response:
        """Return a run as it was uploaded."""
        run = self.get_object()
        job = Job.objects.filter(job_ulid=run.job_id).only("trace").first()
        report = RunPresenter(run.payload, job.trace if job else None)
        trace = {"requested": report.requested_trace, "recorded": report.trace_level}
        return Response({name: trace if name == "trace" else getattr(run, str(name)) for name in RunDetail().fields})
