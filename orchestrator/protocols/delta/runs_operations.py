"""What the OpenAPI document says of runs: their shapes, their codes, their examples."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from orchestrator.http.api.headers import KEY_PATTERN
from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.delta import runs_requests as requests
from orchestrator.protocols.delta.runs_words import CANCEL_REQUESTED, JOB, RUN, TIMED_OUT
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models import FailureExplanation

HEADER: Final = "header"
JOB_WORDS = list(dict.fromkeys([*JOB.values(), CANCEL_REQUESTED, TIMED_OUT]))
RUN_WORDS = list(RUN.values())


class DeltaRun(serializers.Serializer):
    id = serializers.CharField()
    repo_id = serializers.CharField(allow_null=True)
    ref = serializers.CharField(allow_null=True)
    commit_sha = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(choices=RUN_WORDS)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class DeltaRunJob(serializers.Serializer):
    id = serializers.CharField(help_text="The same for every attempt.")
    run_id = serializers.CharField()
    name = serializers.CharField()
    required = serializers.BooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    state = serializers.ChoiceField(choices=JOB_WORDS)
    attempt_count = serializers.IntegerField()
    reason = serializers.CharField(required=False)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class DeltaAttempt(serializers.Serializer):
    id = serializers.CharField()
    job_id = serializers.CharField()
    attempt_number = serializers.IntegerField()
    state = serializers.ChoiceField(choices=JOB_WORDS)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(required=False)
    completed_at = serializers.DateTimeField(required=False)


class DeltaArtifact(serializers.Serializer):
    id = serializers.IntegerField()
    job_attempt_id = serializers.CharField()
    type = serializers.CharField()
    uri = serializers.CharField()
    created_at = serializers.DateTimeField()


class DeltaExplanation(serializers.Serializer):
    id = serializers.IntegerField()
    job_attempt_id = serializers.CharField()
    category = serializers.ChoiceField(choices=FailureExplanation.Category.choices)
    summary = serializers.CharField()
    confidence = serializers.ChoiceField(choices=FailureExplanation.Confidence.choices)
    details = serializers.CharField(required=False)
    created_at = serializers.DateTimeField()


class JobOfRun(serializers.Serializer):
    job = DeltaRunJob()
    attempts = DeltaAttempt(many=True)
    artifacts = DeltaArtifact(many=True)
    failure_explanations = DeltaExplanation(many=True)


class WholeRun(serializers.Serializer):
    run = DeltaRun()
    jobs = JobOfRun(many=True)


class RunTold(serializers.Serializer):
    run_id = serializers.CharField()
    state = serializers.ChoiceField(choices=RUN_WORDS)


class RunAgain(RunTold):
    original_run = serializers.CharField()
    created = serializers.ChoiceField(choices=["true", "false"], help_text="A string, as the documents have it.")
    idempotencyKey = serializers.CharField()  # noqa: N815 the documents' name


def _header(name: str, *statuses: int, required: bool = False, **schema: Any) -> OpenApiParameter:
    return OpenApiParameter(
        name, {"type": "string"} | schema, HEADER, required=required, response=list(statuses) or False
    )


PATTERN = f"^{KEY_PATTERN}$"
KEY = _header("Idempotency-Key", pattern=PATTERN)
NEEDED_KEY = _header("Idempotency-Key", required=True, pattern=PATTERN)
LOCATION = _header("Location", 201, 200, required=True)
REPLAYED = _header("Idempotency-Replayed", 200, required=True, enum=["true"])
ID = OpenApiParameter("batch_id", {"type": "string", "pattern": f"^rtb_{ULID_PATTERN}$"}, "path", required=True)

_RUN = "rtb_01kkygkagq0jk17bx6y1w8c3df"
_AT = "2026-01-04T08:00:00Z"
_TIMES = {"created_at": _AT, "updated_at": _AT}
_JOB = "rtj_01kkygkagq0jk17bx6y1w8c3df"
START_EXAMPLE = OpenApiExample(
    "a run with a job of its own",
    request_only=True,
    value={
        "repo_id": "cc-consulting-nv/web",
        "ref": "refs/heads/main",
        "commit_sha": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf",
        "reason": "nightly",
        "jobs": [{"name": "unit-tests", "workdir": ".", "steps": ["make test"], "env": {"CI": "true"}}],
    },
)
_TOLD_EXAMPLE = OpenApiExample("a run", {"run_id": _RUN, "state": "QUEUED"}, response_only=True, status_codes=["201"])
_CANCELED = OpenApiExample(
    "what ran is asked to stop", {"run_id": _RUN, "state": "CANCEL_REQUESTED"}, response_only=True, status_codes=["200"]
)
_AGAIN = OpenApiExample(
    "a new run",
    {
        "run_id": "rtb_01kkygmfjf4j9s26hzd0h93j0r", "original_run": _RUN, "state": "QUEUED", "created": "true",
        "idempotencyKey": "again-1",
    },
    response_only=True,
    status_codes=["201"],
)  # fmt: skip
_WHOLE = OpenApiExample(
    "a run that waits",
    {
        "run": {
            "id": _RUN, "repo_id": "cc-consulting-nv/web", "ref": "refs/heads/main",
            "commit_sha": "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf", "state": "QUEUED", **_TIMES,
        },
        "jobs": [
            {
                "job": {
                    "id": _JOB, "run_id": _RUN, "name": "unit-tests", "required": True, "state": "QUEUED",
                    "attempt_count": 1, **_TIMES,
                },
                "attempts": [{"id": _JOB, "job_id": _JOB, "attempt_number": 1, "state": "QUEUED", **_TIMES}],
                "artifacts": [],
                "failure_explanations": [],
            }
        ],
    },
    response_only=True,
)  # fmt: skip

ADMISSION = (
    *("feature_not_enabled", "project_not_enabled", "repository_not_allowed", "pool_forbidden"),
    *("timeout_above_plan", "idempotency_conflict", "queue_full", "submit_rate_exceeded"),
)
START = operation_docs(
    "start_delta_run",
    request=requests.StartRun,
    responses={201: RunTold, 200: OpenApiResponse(RunTold, description="The run that the same key made before.")},
    parameters=[KEY, LOCATION, REPLAYED],
    examples=[START_EXAMPLE, _TOLD_EXAMPLE],
    codes=("not_found", *ADMISSION),
)
SHOW = operation_docs("get_delta_run", responses=WholeRun, parameters=[ID], examples=[_WHOLE], codes=("not_found",))
CANCEL = operation_docs(
    "cancel_delta_run",
    request=requests.CancelRun,
    responses={200: RunTold},
    parameters=[ID],
    examples=[_CANCELED],
    codes=("not_found", "already_final"),
)
RERUN = operation_docs(
    "rerun_delta_run",
    request=requests.RerunRun,
    responses={201: RunAgain, 200: OpenApiResponse(RunAgain, description="The run that the same key made before.")},
    parameters=[ID, NEEDED_KEY, LOCATION, REPLAYED],
    examples=[_AGAIN],
    codes=("not_found", *ADMISSION),
)
