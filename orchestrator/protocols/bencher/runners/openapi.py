"""OpenAPI of the operations on runners."""

from typing import Final

from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.bencher.openapi import LIST_PARAMETERS, resource_id
from orchestrator.protocols.bencher.runners.serializers import (
    NewRunnerInput,
    RunnerChangeInput,
    RunnerDocument,
    RunnerKeyDocument,
    RunnerSpecInput,
)
from orchestrator.protocols.bencher.specs.openapi import SPEC_ID
from orchestrator.protocols.bencher.specs.serializers import SpecDocument

RUNNER_ID: Final = resource_id("runner")
_UUID = "019a2b1c-0000-7000-8000-000000000002"
_KEY = "bencher_runner_" + "x" * 30

LIST_RUNNERS_DOCS = operation_docs(
    "list_runners", responses=RunnerDocument(many=True), parameters=LIST_PARAMETERS, codes=("not_found",)
)
CREATE_RUNNER_DOCS = operation_docs(
    "create_runner",
    request=NewRunnerInput,
    responses={201: RunnerKeyDocument},
    examples=[
        OpenApiExample("new runner", {"name": "Rack 7"}, request_only=True),
        OpenApiExample("key", {"uuid": _UUID, "key": _KEY, "token": _KEY}, response_only=True, status_codes=["201"]),
    ],
    codes=("not_found", "conflict"),
)
GET_RUNNER_DOCS = operation_docs("get_runner", responses=RunnerDocument, parameters=[RUNNER_ID], codes=("not_found",))
CHANGE_RUNNER_DOCS = operation_docs(
    "change_runner",
    request=RunnerChangeInput,
    responses=RunnerDocument,
    parameters=[RUNNER_ID],
    codes=("not_found", "conflict"),
)
ROTATE_KEY_DOCS = operation_docs(
    "rotate_runner_key",
    request=None,
    responses={201: RunnerKeyDocument},
    parameters=[RUNNER_ID],
    codes=("not_found", "conflict"),
)
ROTATE_TOKEN_DOCS = operation_docs(
    "rotate_runner_token",
    request=None,
    responses={201: RunnerKeyDocument},
    parameters=[RUNNER_ID],
    description="The path of older clients for a rotation of the key.",
    codes=("not_found", "conflict"),
)
LIST_RUNNER_SPECS_DOCS = operation_docs(
    "list_runner_specs", responses=SpecDocument(many=True), parameters=[RUNNER_ID], codes=("not_found",)
)
ADD_RUNNER_SPEC_DOCS = operation_docs(
    "add_runner_spec",
    request=RunnerSpecInput,
    responses={201: SpecDocument},
    parameters=[RUNNER_ID],
    codes=("not_found", "conflict"),
)
REMOVE_RUNNER_SPEC_DOCS = operation_docs(
    "remove_runner_spec",
    responses={204: OpenApiResponse(description="No longer associated.")},
    parameters=[RUNNER_ID, SPEC_ID],
    codes=("not_found", "conflict"),
)
