"""Requests and responses of `/v1/bulk-actions`. `wire.py` builds the responses; their classes are schema only."""

from datetime import datetime
from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from orchestrator.bulk_actions.actions import ACTIONS, JOB
from orchestrator.bulk_actions.models import MAX_REASON_LENGTH, BulkStatus
from orchestrator.core.datetimes import format_timestamp
from orchestrator.http.api.fields import (
    SanitizedTextField,
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictSerializer,
    TimestampField,
)
from orchestrator.incidents.models import IncidentKind, IncidentStatus
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import STATUS, STATUS_WITHOUT_INGEST, FailureReason

MAX_IDS = 1000
STATUSES = list(dict.fromkeys([*STATUS.values(), *STATUS_WITHOUT_INGEST.values()]))
UNRESOLVED = [str(IncidentStatus.OPEN), str(IncidentStatus.ACKNOWLEDGED)]


def _ids(prefix: str) -> serializers.ListField:
    child = StrictCharField(pattern=f"{prefix}_{ULID_PATTERN}")
    return serializers.ListField(child=child, required=False, allow_empty=False, max_length=MAX_IDS)


class JobSelectionInput(StrictSerializer):
    """The filter of an action on jobs. All members must hold; at least one is required."""

    project_slug = StrictCharField(pattern=SLUG, required=False)
    job_type = StrictChoiceField(choices=list(JOB_TYPES), required=False)
    status = StrictChoiceField(choices=STATUSES, required=False)
    pool = StrictCharField(pattern=SLUG, required=False)
    correlation_id = StrictCharField(max_length=64, check=wrong_label, required=False)
    batch_id = StrictCharField(pattern=f"rtb_{ULID_PATTERN}", required=False)
    git_commit = StrictCharField(max_length=64, pattern="[0-9a-f]+", required=False)
    failure_reason = StrictChoiceField(choices=FailureReason.values, required=False)
    created_after = TimestampField(required=False)
    created_before = TimestampField(required=False)
    job_ids = _ids("rtj")


class IncidentSelectionInput(StrictSerializer):
    """The filter of an action on incidents. All members must hold; at least one is required."""

    kind = StrictChoiceField(
        choices=[str(kind) for kind in IncidentKind if kind != IncidentKind.BREAKER], required=False
    )
    job_type = StrictChoiceField(choices=list(JOB_TYPES), required=False)
    reason = StrictChoiceField(choices=FailureReason.values, required=False)
    state = StrictChoiceField(choices=UNRESOLVED, required=False)
    opened_after = TimestampField(required=False)
    opened_before = TimestampField(required=False)
    incident_ids = _ids("inc")


@extend_schema_field(
    PolymorphicProxySerializer("BulkFilter", [JobSelectionInput, IncidentSelectionInput], resource_type_field_name=None)
)
class BulkFilterField(serializers.DictField):
    """The filter of any action. `BulkActionInput` validates it once the action is known."""


class BulkActionInput(StrictSerializer):
    """POST /v1/bulk-actions."""

    org_slug = StrictCharField(pattern=SLUG)
    action = StrictChoiceField(choices=list(ACTIONS))
    filter = BulkFilterField()
    reason = SanitizedTextField(
        max_length=MAX_REASON_LENGTH, help_text="Recorded in the audit log, and with each job or incident."
    )
    dry_run = StrictBooleanField(
        required=False, default=False, help_text="Only count what the action would change. The response is 200."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        serializer = JobSelectionInput if ACTIONS[attrs["action"]].subject == JOB else IncidentSelectionInput
        selection = serializer(data=attrs["filter"])
        if not selection.is_valid():
            raise serializers.ValidationError({"filter": selection.errors})
        if not selection.validated_data:
            raise serializers.ValidationError({"filter": "Must have at least one member. No action concerns all rows."})
        filters = {name: _to_json(value) for name, value in selection.validated_data.items()}
        return attrs | {"filter": filters}


def _to_json(value: Any) -> Any:
    return format_timestamp(value) if isinstance(value, datetime) else value


class AbortBulkActionInput(StrictSerializer):
    """POST /v1/bulk-actions/{bulk_action_id}/abort."""

    reason = SanitizedTextField(required=False, default="", allow_blank=True, max_length=MAX_REASON_LENGTH)


class BulkActionOutput(serializers.Serializer):
    """A bulk action with its progress."""

    bulk_action_id = serializers.CharField()
    org_slug = serializers.CharField()
    action = serializers.CharField()
    filter = serializers.DictField()
    reason = serializers.CharField()
    status = serializers.ChoiceField(
        choices=BulkStatus.values, help_text="`aborting`: a dispatcher applies the last targets, at most 50."
    )
    total = serializers.IntegerField(help_text="Jobs or incidents, counted before the first one was changed.")
    done = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="`GET …/refusals` lists them.")
    created_by = ActorOutput()
    aborted_by = ActorOutput(allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)


class BulkMatchOutput(serializers.Serializer):
    """The result of a dry run."""

    matched = serializers.IntegerField(help_text="Jobs or incidents that the action would change.")
    limit = serializers.IntegerField(help_text="The most that one action may change. `matched` is at most one more.")


class BulkRefusalOutput(serializers.Serializer):
    """A job or incident for which the operation was refused."""

    id = serializers.CharField(help_text="The id of the job or incident.")
    code = serializers.CharField()
    detail = serializers.CharField()
    refused_at = serializers.DateTimeField()
