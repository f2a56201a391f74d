"""Requests and responses of `/v1/notification-rules`. `wire.py` builds the responses."""

from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import (
    ChangeSerializer,
    SanitizedTextField,
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
)
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from runtime_jobs.event_types import EVENT_TYPES
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import FailureClass

MAX_NAMES = 50
MAX_RECIPIENTS = 20
MAX_GATHER_SECONDS = 24 * 3600
WEBHOOK_ID = "whk_[0-9a-z]{26}"


def _names(choices: list[str], **kwargs: Any) -> serializers.ListField:
    return serializers.ListField(child=StrictChoiceField(choices=choices), max_length=MAX_NAMES, **kwargs)


class StrictEmailField(serializers.EmailField):
    """An address of mail, as a JSON string that is not trimmed."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data != data.strip():
            self.fail("invalid")
        return str(super().to_internal_value(data))


class ChangeNotificationRuleInput(ChangeSerializer):
    """PATCH /v1/notification-rules/{rule_id}: the fields to change."""

    name = SanitizedTextField(required=False, max_length=100)
    is_enabled = StrictBooleanField(required=False)
    event_types = _names(list(EVENT_TYPES), required=False, min_length=1)
    job_types = _names(list(JOB_TYPES), required=False, help_text="Empty: all, and events without a job.")
    projects = serializers.ListField(
        child=StrictCharField(pattern=SLUG),
        max_length=MAX_NAMES,
        required=False,
        help_text="Slugs. Empty: all projects, and events without a job.",
    )
    failure_classes = _names(
        FailureClass.values, required=False, help_text="Only failed jobs with such a failure. Empty: all events."
    )
    priority_from = StrictChoiceField(
        choices=list(PRIORITIES), required=False, allow_null=True, help_text="The least priority of the job. Null: any."
    )
    webhook_id = StrictCharField(
        pattern=WEBHOOK_ID, required=False, allow_null=True, help_text="The webhook that receives the notifications."
    )
    recipients = serializers.ListField(
        child=StrictEmailField(),
        max_length=MAX_RECIPIENTS,
        required=False,
        help_text="Addresses of mail, instead of a webhook: of members, or of domains that the operator permits.",
    )
    gather_seconds = StrictIntegerField(
        required=False,
        min_value=0,
        max_value=MAX_GATHER_SECONDS,
        help_text="Events of one type, job type and project within this time become one notification. 0: none do.",
    )


class NotificationRuleInput(ChangeNotificationRuleInput):
    """POST /v1/notification-rules."""

    org_slug = StrictCharField(pattern=SLUG)
    name = SanitizedTextField(max_length=100)
    event_types = _names(list(EVENT_TYPES), min_length=1)


class NotificationRuleOutput(serializers.Serializer):
    """A notification rule."""

    rule_id = serializers.CharField()
    org_slug = serializers.CharField()
    name = serializers.CharField()
    is_enabled = serializers.BooleanField()
    event_types = serializers.ListField(child=serializers.CharField())
    job_types = serializers.ListField(child=serializers.CharField())
    projects = serializers.ListField(child=serializers.CharField())
    failure_classes = serializers.ListField(child=serializers.CharField())
    priority_from = serializers.CharField(allow_null=True)
    webhook_id = serializers.CharField(allow_null=True)
    recipients = serializers.ListField(child=serializers.CharField())
    gather_seconds = serializers.IntegerField()
    updated_by = ActorOutput(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
