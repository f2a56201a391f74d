"""Requests and responses of `/v1/batches` and `/v1/checks`.

`wire.py` builds the responses; their classes are schema only.
"""

import json
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
    StrictSerializer,
)
from orchestrator.protocols.native.serializers import SLUG
from orchestrator.workflows.reruns import RerunScope
from orchestrator.workflows.run_reads import RunStatus
from runtime_jobs.batch_state import BatchState
from runtime_jobs.models import RunHold, WorkflowEvent
from runtime_jobs.models.workflow_runs import MAX_FILE, MAX_REF
from runtime_jobs.states import TRIGGER_KINDS, Conclusion, JobState
from runtime_jobs.workflows.document import WORKFLOW_FOLDER, is_workflow_file
from runtime_jobs.workflows.reruns import RunEdit

MAX_REASON = 500
MAX_EVENT_PAYLOAD_BYTES = 65_536
FULL_NAME = r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}"
COMMIT = r"[0-9a-f]{40}([0-9a-f]{24})?"

# --- requests ---------------------------------------------------------------------------------------------------------


def _check_file(path: str) -> str | None:
    return None if is_workflow_file(path) else f"Must be a .yml or .yaml file in {WORKFLOW_FOLDER}."


class TextMapField(serializers.DictField):
    """A JSON object whose values are strings."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(allow_blank=True, max_length=8_192), **kwargs)


@extend_schema_field({"type": "object", "additionalProperties": {}})
class PayloadField(serializers.Field):
    """A JSON object of at most `MAX_EVENT_PAYLOAD_BYTES`."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError("Must be a JSON object.")
        text = json.dumps(data)
        if len(text) > MAX_EVENT_PAYLOAD_BYTES:
            raise serializers.ValidationError(f"Must have at most {MAX_EVENT_PAYLOAD_BYTES} bytes.")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class StartWorkflowRunInput(StrictSerializer):
    """POST /v1/batches."""

    org_slug = StrictCharField(pattern=SLUG)
    repository = StrictCharField(pattern=FULL_NAME, help_text="`owner/name`.")
    workflow_file = StrictCharField(max_length=MAX_FILE, check=_check_file)
    ref = StrictCharField(max_length=MAX_REF, help_text="A full ref, or the name of a branch or tag.")
    commit = StrictCharField(
        pattern=COMMIT, required=False, allow_null=True, default=None, help_text="Default: the commit of the ref."
    )
    inputs = TextMapField(required=False, default=dict, help_text="Inputs of workflow_dispatch.")
    event = StrictChoiceField(choices=WorkflowEvent.values, required=False, default=WorkflowEvent.DISPATCH.value)
    event_payload = PayloadField(
        required=False, default=dict, help_text="`shithub.event` of an event other than workflow_dispatch."
    )


class CancelBatchInput(StrictSerializer):
    """POST /v1/batches/{batch_id}/cancel."""

    reason = SanitizedTextField(required=False, allow_blank=True, default="", max_length=MAX_REASON)


class PinBatchInput(StrictSerializer):
    """POST /v1/batches/{batch_id}/pin and /unpin."""

    reason = SanitizedTextField(required=False, allow_blank=True, default="", max_length=MAX_REASON)


class RunEditInput(StrictSerializer):
    """Changes of a rerun. Members that are missing stay as they were."""

    inputs = TextMapField(required=False, allow_null=True, default=None)
    env = TextMapField(required=False, default=dict)
    runs_on = StrictCharField(required=False, allow_null=True, default=None, max_length=100)
    timeout_minutes = StrictIntegerField(required=False, allow_null=True, default=None, min_value=1, max_value=4320)


class RerunBatchInput(StrictSerializer):
    """POST /v1/batches/{batch_id}/rerun."""

    only = StrictChoiceField(
        choices=[str(scope) for scope in RerunScope],
        required=False,
        default=str(RerunScope.ALL),
        help_text="`failed`: the failed jobs and those that need them. The results of the others are taken over.",
    )
    edit = RunEditInput(required=False, default=None, allow_null=True)
    reason = SanitizedTextField(required=False, allow_blank=True, default="", max_length=MAX_REASON)


def edit_of(validated: dict[str, Any] | None) -> RunEdit:
    """Return the changes of a validated `edit`."""
    return RunEdit(**validated) if validated else RunEdit()


# --- responses --------------------------------------------------------------------------------------------------------


class BatchTriggerOutput(serializers.Serializer):
    """Cause of a batch."""

    kind = serializers.ChoiceField(choices=TRIGGER_KINDS)
    actor = serializers.CharField(allow_null=True)


class WorkflowRunOutput(serializers.Serializer):
    """The workflow run of a batch."""

    run_id = serializers.IntegerField()
    run_index = serializers.IntegerField(help_text="Number within the repository, from 1.")
    repository = serializers.CharField()
    workflow_file = serializers.CharField()
    workflow_name = serializers.CharField(allow_blank=True)
    event = serializers.ChoiceField(choices=WorkflowEvent.values)
    status = serializers.ChoiceField(choices=[str(status) for status in RunStatus])
    conclusion = serializers.ChoiceField(choices=Conclusion.values, allow_null=True)
    completed_at = serializers.DateTimeField(allow_null=True)
    hold = serializers.ChoiceField(choices=RunHold.values, allow_null=True, help_text="Why no job may be claimed yet.")
    concurrency_group = serializers.CharField(allow_null=True)
    from_fork = serializers.BooleanField()
    approved_by = serializers.CharField(allow_null=True)
    approved_at = serializers.DateTimeField(allow_null=True)
    pinned = serializers.BooleanField(help_text="Retention keeps the run with its logs and artifacts.")
    parent_run_id = serializers.IntegerField(allow_null=True)
    reason = serializers.CharField(allow_blank=True)
    edits = serializers.DictField(help_text="What the rerun changed.")


class BatchJobOutput(serializers.Serializer):
    """A job of a batch."""

    job_id = serializers.CharField(allow_null=True, help_text="Null for a job that was taken over from the parent run.")
    id = serializers.IntegerField(allow_null=True, help_text="The number by which runners know the job.")
    job_key = serializers.CharField(allow_null=True)
    name = serializers.CharField()
    needs = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(choices=JobState.values, allow_null=True)
    status = serializers.ChoiceField(choices=[str(status) for status in RunStatus])
    conclusion = serializers.ChoiceField(choices=Conclusion.values, allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    taken_over = serializers.BooleanField()


@extend_schema_serializer(component_name="BatchListed")
class BatchListOutput(serializers.Serializer):
    """A batch in a list."""

    batch_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    state = serializers.ChoiceField(choices=BatchState.values)
    created_at = serializers.DateTimeField()
    git_ref = serializers.CharField(allow_null=True)
    git_commit = serializers.CharField(allow_null=True)
    trigger = BatchTriggerOutput()
    rerun_of = serializers.CharField(allow_null=True)
    cancel_requested = serializers.BooleanField()
    correlation_id = serializers.CharField()
    run = WorkflowRunOutput(allow_null=True)


@extend_schema_serializer(component_name="BatchInDetail")
class BatchOutput(BatchListOutput):
    """A batch with its jobs."""

    jobs = BatchJobOutput(many=True)


class StartedRunOutput(serializers.Serializer):
    """A new run."""

    batch_id = serializers.CharField()
    run_id = serializers.IntegerField()
    run_index = serializers.IntegerField()
    jobs = BatchJobOutput(many=True)


class CheckOutput(serializers.Serializer):
    """A job of a workflow run as a check of its commit."""

    check_id = serializers.IntegerField()
    app = serializers.CharField()
    name = serializers.CharField()
    external_id = serializers.CharField()
    repository = serializers.CharField()
    head_sha = serializers.CharField()
    status = serializers.ChoiceField(choices=["queued", "in_progress", "completed"])
    conclusion = serializers.ChoiceField(choices=Conclusion.values, allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    completed_at = serializers.DateTimeField(allow_null=True)
    run_id = serializers.IntegerField()
    run_index = serializers.IntegerField()
    workflow_file = serializers.CharField()
    batch_id = serializers.CharField()
    job_id = serializers.CharField()
