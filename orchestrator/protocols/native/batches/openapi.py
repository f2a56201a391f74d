"""OpenAPI of the operations on batches and checks: ids, bodies, examples and error codes."""

from typing import Any

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.batches import serializers
from orchestrator.protocols.native.openapi import IDEMPOTENCY_KEY, REPLAYED_CREATED, request_example, response_example

_SHA = "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf"
_BATCH_ID = "rtb_01kkygkagq0jk17bx6y1w8c3df"
_RUN: dict[str, Any] = {
    "run_id": 20,
    "run_index": 7,
    "repository": "alice/demo",
    "workflow_file": ".shithub/workflows/ci.yml",
    "workflow_name": "CI",
    "event": "workflow_dispatch",
    "status": "queued",
    "conclusion": None,
    "completed_at": None,
    "hold": None,
    "concurrency_group": "ci-refs/heads/main",
    "from_fork": False,
    "approved_by": None,
    "approved_at": None,
    "pinned": False,
    "parent_run_id": None,
    "reason": "",
    "edits": {},
}
_JOB: dict[str, Any] = {
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "id": 10,
    "job_key": "build",
    "name": "build",
    "needs": [],
    "state": "queued",
    "status": "queued",
    "conclusion": None,
    "started_at": None,
    "finished_at": None,
    "taken_over": False,
}
_BATCH: dict[str, Any] = {
    "batch_id": _BATCH_ID,
    "org_slug": "sandtrace",
    "project_slug": "web",
    "state": "queued",
    "created_at": "2026-03-17T20:00:00Z",
    "git_ref": "refs/heads/main",
    "git_commit": _SHA,
    "trigger": {"kind": "workflow_dispatch", "actor": "ci"},
    "rerun_of": None,
    "cancel_requested": False,
    "correlation_id": "0af7651916cd43dd8448eb211c80319c",
    "run": _RUN,
}
_STARTED = {"batch_id": _BATCH_ID, "run_id": 20, "run_index": 7, "jobs": [_JOB]}

LIST_BATCHES = operation_docs(
    "list_batches",
    responses=serializers.BatchListOutput(many=True),
    examples=[response_example("workflow run", _BATCH)],
)
GET_BATCH = operation_docs(
    "get_batch",
    responses=serializers.BatchOutput,
    examples=[response_example("workflow run", _BATCH | {"jobs": [_JOB]})],
    codes=("not_found",),
)
START_RUN = operation_docs(
    "start_workflow_run",
    request=serializers.StartWorkflowRunInput,
    responses={201: serializers.StartedRunOutput},
    parameters=[IDEMPOTENCY_KEY, REPLAYED_CREATED],
    examples=[
        request_example(
            "start a workflow by hand",
            {
                "org_slug": "sandtrace",
                "repository": "alice/demo",
                "workflow_file": ".shithub/workflows/ci.yml",
                "ref": "main",
                "inputs": {"target": "staging"},
            },
        ),
        response_example("queued run", _STARTED, "201"),
    ],
    codes=(
        *("not_found", "conflict", "mirror_outdated", "idempotency_conflict", "project_not_enabled"),
        "timeout_above_plan",
        *("queue_full", "submit_rate_exceeded"),
    ),
)
CANCEL_BATCH = operation_docs(
    "cancel_batch",
    request=serializers.CancelBatchInput,
    responses={200: serializers.BatchOutput, 202: serializers.BatchOutput},
    examples=[request_example("cancel with a reason", {"reason": "wrong branch"})],
    codes=("not_found", "already_final"),
)
RERUN_BATCH = operation_docs(
    "rerun_workflow_run",
    request=serializers.RerunBatchInput,
    responses={201: serializers.StartedRunOutput},
    parameters=[IDEMPOTENCY_KEY, REPLAYED_CREATED],
    examples=[
        request_example(
            "failed jobs on a larger machine",
            {"only": "failed", "edit": {"runs_on": "large"}, "reason": "the tests need more memory"},
        ),
        response_example("queued run", _STARTED | {"run_id": 21, "run_index": 8}, "201"),
    ],
    codes=(
        *("not_found", "not_final", "conflict", "idempotency_conflict", "project_not_enabled"),
        *("timeout_above_plan", "queue_full", "submit_rate_exceeded"),
    ),
)
APPROVE_BATCH = operation_docs(
    "approve_workflow_run",
    request=None,
    responses=serializers.BatchOutput,
    codes=("not_found", "conflict"),
)
PIN_BATCH = operation_docs(
    "pin_workflow_run",
    request=serializers.PinBatchInput,
    responses=serializers.BatchOutput,
    examples=[request_example("keep a release", {"reason": "release 1.0"})],
    codes=("not_found", "conflict"),
)
UNPIN_BATCH = operation_docs(
    "unpin_workflow_run",
    request=serializers.PinBatchInput,
    responses=serializers.BatchOutput,
    codes=("not_found", "conflict"),
)
LIST_CHECKS = operation_docs(
    "list_checks",
    responses=serializers.CheckOutput(many=True),
    examples=[
        response_example(
            "a job that runs",
            {
                "check_id": 10,
                "app": "shithub-actions",
                "name": "build",
                "external_id": "workflow_run:20:job:build",
                "repository": "alice/demo",
                "head_sha": _SHA,
                "status": "in_progress",
                "conclusion": None,
                "started_at": "2026-03-17T20:00:05Z",
                "completed_at": None,
                "run_id": 20,
                "run_index": 7,
                "workflow_file": ".shithub/workflows/ci.yml",
                "batch_id": _BATCH_ID,
                "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
            },
        )
    ],
)
