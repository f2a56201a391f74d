"""OpenAPI of the steps of a leased workflow job."""

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.openapi import PATH, request_example, response_example
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.protocols.native.workflow_jobs import serializers

LEASE_ID = OpenApiParameter("lease_id", str, PATH, required=True)
INDEX = OpenApiParameter("index", int, PATH, required=True, description="The position of the step, from 0.")
_COMMIT = "4bf2c1d8b8a1a5c0a6e4b7f1c2d3e4f5a6b7c8d9"

START_STEPS = operation_docs(
    "start_workflow_steps",
    request=EmptyBody,
    responses=serializers.StartedStepsOutput,
    parameters=[LEASE_ID],
    examples=[
        response_example(
            "two steps",
            {"repository": "alice/demo", "head_sha": _COMMIT, "checkout_token": "eyJhbGciOiJI", "step_count": 2},
        )
    ],
    codes=("stale_lease", "not_found"),
)
BEGIN_STEP = operation_docs(
    "begin_workflow_step",
    request=serializers.BeginStepInput,
    responses=serializers.StepOrderOutput,
    parameters=[LEASE_ID, INDEX],
    examples=[
        request_example("after a successful step", {"has_failed": False, "env": {"VERSION": "1.2"}}),
        response_example(
            "a script",
            {
                "is_skipped": False,
                "error": "",
                "run": "make test",
                "uses": "",
                "with_values": {},
                "working_directory": "src",
                "environment": {"CI": "true", "VERSION": "1.2"},
                "continue_on_error": False,
                "step_id": "test",
                "shell": "",
            },
        ),
    ],
    codes=("stale_lease", "not_found", "illegal_move"),
)
END_STEP = operation_docs(
    "end_workflow_step",
    request=serializers.EndStepInput,
    responses={204: OpenApiResponse(description="The step has ended; no content.")},
    parameters=[LEASE_ID, INDEX],
    examples=[request_example("a success", {"conclusion": "success"})],
    codes=("stale_lease", "not_found", "illegal_move"),
)
