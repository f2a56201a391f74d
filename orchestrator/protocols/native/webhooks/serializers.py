"""Requests and responses of `/v1/webhooks`. `wire.py` builds the responses; their classes are schema only."""

from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import (
    ChangeSerializer,
    SanitizedTextField,
    StrictCharField,
    StrictChoiceField,
    StrictSerializer,
    TimestampField,
)
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from orchestrator.webhooks.models import (
    MAX_DESCRIPTION_LENGTH,
    MAX_URL_LENGTH,
    DeliveryStatus,
    WebhookStatus,
)
from runtime_jobs.event_types import EVENT_TYPES
from runtime_jobs.specs import JOB_TYPES

MAX_NAMES = 50
SETTABLE = [WebhookStatus.ACTIVE, WebhookStatus.PAUSED]
DISPLAYED = [*SETTABLE, WebhookStatus.DISABLED]


def names_field(choices: tuple[str, ...], **kwargs: Any) -> serializers.ListField:
    """Return a field for some of a closed list of names."""
    return serializers.ListField(child=StrictChoiceField(choices=list(choices)), max_length=MAX_NAMES, **kwargs)


def _without_repeats(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


class WebhookTermsInput(StrictSerializer):
    """The fields of a webhook that a client sets."""

    description = SanitizedTextField(required=False, allow_blank=True, max_length=MAX_DESCRIPTION_LENGTH)
    event_types = names_field(EVENT_TYPES, required=False, help_text="The events that are sent. Empty: all.")
    job_types = names_field(
        tuple(JOB_TYPES),
        required=False,
        help_text="The types of jobs whose events are sent. Empty: all, and events without a job.",
    )

    def validate_event_types(self, names: list[str]) -> list[str]:
        return _without_repeats(names)

    def validate_job_types(self, names: list[str]) -> list[str]:
        return _without_repeats(names)


class WebhookInput(WebhookTermsInput):
    """POST /v1/webhooks."""

    org_slug = StrictCharField(pattern=SLUG)
    url = StrictCharField(
        max_length=MAX_URL_LENGTH,
        help_text="https, with a host that has public addresses only, and port 443 or one from 1024.",
    )


class ChangeWebhookInput(WebhookTermsInput, ChangeSerializer):
    """PATCH /v1/webhooks/{webhook_id}: the fields to change."""

    url = StrictCharField(max_length=MAX_URL_LENGTH, required=False)
    status = StrictChoiceField(
        choices=[str(status) for status in SETTABLE],
        required=False,
        help_text="paused: deliveries become dead letters. active: deliveries are sent, also after `disabled`.",
    )


class RedeliverInput(StrictSerializer):
    """POST /v1/webhooks/{webhook_id}/redeliver."""

    since = TimestampField(
        required=False,
        default=None,
        allow_null=True,
        help_text="Send all deliveries again that were created since then and have ended. Null: the dead letters.",
    )


class WebhookOutput(serializers.Serializer):
    """A webhook without its secret."""

    webhook_id = serializers.CharField()
    org_slug = serializers.CharField()
    url = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    event_types = serializers.ListField(child=serializers.ChoiceField(choices=list(EVENT_TYPES)))
    job_types = serializers.ListField(child=serializers.CharField())
    status = serializers.ChoiceField(choices=[str(status) for status in DISPLAYED])
    status_reason = serializers.CharField(allow_blank=True, help_text="Why the webhook is paused or disabled.")
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="The first failed try since the last successful one."
    )
    former_secret_until = serializers.DateTimeField(
        allow_null=True, help_text="Until when deliveries are signed with the secret before the last rotation, too."
    )
    updated_by = ActorOutput(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class WebhookSecretOutput(WebhookOutput):
    """A webhook with its secret, which no other response contains."""

    secret = serializers.CharField(
        allow_null=True,
        help_text="`whsec_` and 32 bytes in base64 (Standard Webhooks 1.0.0). Null if a repeated request created a "
        "webhook whose secret was rotated since.",
    )


class DeliveryOutput(serializers.Serializer):
    """A delivery of one event to one webhook."""

    delivery_id = serializers.CharField()
    event_id = serializers.UUIDField(help_text="The header `webhook-id` of every try.")
    event_type = serializers.CharField()
    job_type = serializers.CharField(allow_null=True)
    job_id = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(choices=DeliveryStatus.values)
    tries = serializers.IntegerField()
    last_error = serializers.CharField(allow_null=True, help_text="What happened in the last try, if it failed.")
    next_try_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class DeliveryTryOutput(serializers.Serializer):
    """One try of a delivery."""

    number = serializers.IntegerField()
    started_at = serializers.DateTimeField()
    duration_ms = serializers.IntegerField()
    status_code = serializers.IntegerField(allow_null=True)
    is_success = serializers.BooleanField()
    sentence = serializers.CharField()
    answer = serializers.CharField(allow_blank=True, help_text="The first 4 KiB of the answer's body.")


class DeliveryDetailOutput(DeliveryOutput):
    """A delivery with its body and its last 50 tries, newest first."""

    body = serializers.CharField(help_text="The bytes that are sent, as text.")
    last_tries = DeliveryTryOutput(many=True)


class RedeliveredOutput(serializers.Serializer):
    """The result of a redelivery of many."""

    redelivered = serializers.IntegerField(help_text="The number of deliveries that are sent again, at most 1000.")
    has_more = serializers.BooleanField(help_text="Whether another call would send further ones.")
    next_since = serializers.DateTimeField(allow_null=True, help_text="`since` for the next call, if this one had it.")
