"""Requests and responses of `/v1/payload-schemas`."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictSerializer
from orchestrator.protocols.native.serializers import SLUG, ActorOutput
from runtime_jobs.specs import PAYLOAD_TYPES


class PayloadSchemaInput(StrictSerializer):
    """PUT /v1/payload-schemas/{job_type}."""

    org_slug = StrictCharField(pattern=SLUG)
    document = serializers.DictField(
        help_text="A JSON Schema (2020-12) without regular expressions, and without references to other documents."
    )


class PayloadSchemaScopeInput(StrictSerializer):
    """DELETE /v1/payload-schemas/{job_type}."""

    org_slug = StrictCharField(pattern=SLUG)


class PayloadSchemaOutput(serializers.Serializer):
    """The schema that payloads of a job type must match in an organization."""

    org_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(PAYLOAD_TYPES))
    document = serializers.DictField()
    version = serializers.IntegerField(help_text="Rises by 1 with each change.")
    changed_by = ActorOutput()
    changed_at = serializers.DateTimeField()
