"""Requests and responses of `/v1/incidents` and `/v1/incident-modes`. `wire.py` builds the responses."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField
from orchestrator.incidents.models import IncidentKind, IncidentStatus
from orchestrator.protocols.native.limits.serializers import ReasonInput, UntilField
from orchestrator.protocols.native.serializers import SLUG, ActorOutput

# --- requests ---------------------------------------------------------------------------------------------------------


class IncidentReasonInput(ReasonInput):
    """POST /v1/incidents/{incident_id}/acknowledge and /resolve."""


class BeginIncidentModeInput(ReasonInput):
    """POST /v1/incident-modes."""

    org_slug = StrictCharField(pattern=SLUG)
    until = UntilField(help_text="When the mode ends by itself, at most 31 days from now.")


class EndIncidentModeInput(ReasonInput):
    """POST /v1/incident-modes/end."""

    org_slug = StrictCharField(pattern=SLUG)


# --- responses --------------------------------------------------------------------------------------------------------


class IncidentOutput(serializers.Serializer):
    """An event that concerns operators until it is resolved."""

    incident_id = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=[str(kind) for kind in IncidentKind],
        help_text="`breaker`: a circuit breaker opened. `job`: a job failed through no fault of its own, and nothing "
        "retries it. `replay`: a replay had another result. `webhook`: a receiver has failed for days. "
        "`worker`: a worker pauses, because its jobs fail for reasons of its own.",
    )
    status = serializers.ChoiceField(choices=[str(status) for status in IncidentStatus])
    org_slug = serializers.CharField(allow_blank=True, help_text="Empty for an incident of a worker.")
    job_type = serializers.CharField(allow_blank=True)
    job_id = serializers.CharField(allow_null=True)
    webhook_id = serializers.CharField(allow_null=True, help_text="The webhook whose receiver has failed.")
    worker_id = serializers.CharField(allow_null=True, help_text="The worker whose jobs fail.")
    reason = serializers.CharField(allow_null=True, help_text="The failure reason of the job.")
    summary = serializers.CharField()
    opened_at = serializers.DateTimeField()
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    acknowledged_by = ActorOutput(allow_null=True)
    resolved_at = serializers.DateTimeField(allow_null=True)
    resolved_by = ActorOutput(allow_null=True)
    resolution = serializers.CharField(allow_null=True, help_text="How it was resolved.")


class IncidentModeOutput(serializers.Serializer):
    """The incident mode of an organization. Until its end retention deletes nothing of the organization."""

    org_slug = serializers.CharField()
    reason = serializers.CharField()
    begun_at = serializers.DateTimeField()
    begun_by = ActorOutput()
    until = serializers.DateTimeField()
