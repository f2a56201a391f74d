"""Requests and responses of `/v1/breakers`. `wire.py` builds the responses."""

from rest_framework import serializers

from leases.models import BreakerState
from orchestrator.http.api.fields import StrictCharField, StrictChoiceField
from orchestrator.protocols.native.limits.serializers import ReasonInput
from orchestrator.protocols.native.serializers import SLUG
from runtime_jobs.specs import JOB_TYPES


class ResetBreakerInput(ReasonInput):
    """POST /v1/breakers/reset."""

    org_slug = StrictCharField(pattern=SLUG)
    job_type = StrictChoiceField(choices=list(JOB_TYPES))


class BreakerOutput(serializers.Serializer):
    """Circuit breaker of one organization and job type."""

    org_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    state = serializers.ChoiceField(choices=[str(state) for state in BreakerState])
    opened_at = serializers.DateTimeField(allow_null=True)
    next_probe_at = serializers.DateTimeField(allow_null=True, help_text="When one job may start as a probe.")
