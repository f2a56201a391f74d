"""Request and response of `POST /v0/runners/{runner}/jobs`. `wire.py` builds the response."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictIntegerField
from orchestrator.protocols.bencher.channel.messages import DEFAULT_POLL_SECONDS, MAX_POLL_SECONDS
from orchestrator.protocols.bencher.fields import LenientSerializer
from orchestrator.protocols.bencher.specs.serializers import SpecDocument


class RunnerClaimInput(LenientSerializer):
    """POST /v0/runners/{runner}/jobs."""

    poll_timeout = StrictIntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_POLL_SECONDS,
        help_text=f"Seconds to wait for a job. Default: {DEFAULT_POLL_SECONDS}.",
    )


@extend_schema_serializer(component_name="RunnerJob")
class ClaimedJobDocument(serializers.Serializer):
    """A job for its runner."""

    uuid = serializers.UUIDField()
    spec = SpecDocument()
    config = serializers.DictField(help_text="Image and execution of the job, as it was submitted.")
    oci_token = serializers.CharField(help_text="Pulls the images of the job's project for ten minutes.")
    timeout = serializers.IntegerField(min_value=1, help_text="Seconds; equal to `config.timeout`.")
    created = serializers.DateTimeField()
