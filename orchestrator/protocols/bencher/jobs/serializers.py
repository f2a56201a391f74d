"""Responses of `/v0/projects/{project}/jobs`. `wire.py` builds them."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictChoiceField
from orchestrator.protocols.bencher.fields import LenientSerializer
from orchestrator.protocols.bencher.specs.serializers import SpecDocument
from orchestrator.protocols.bencher.states import BencherStatus


class ProjectJobChangeInput(LenientSerializer):
    """PATCH /v0/projects/{project}/jobs/{job}."""

    status = StrictChoiceField(choices=[str(BencherStatus.CANCELED)])


@extend_schema_serializer(component_name="JobIteration")
class JobIterationDocument(serializers.Serializer):
    """Output of one iteration."""

    exit_code = serializers.IntegerField()
    stdout = serializers.CharField(required=False)
    stderr = serializers.CharField(required=False)
    output = serializers.DictField(child=serializers.CharField(), required=False, help_text="Files by their path.")


@extend_schema_serializer(component_name="JobOutputOfRunner")
class RunnerOutputDocument(serializers.Serializer):
    """Output of a job as its runner sent it."""

    results = JobIterationDocument(many=True)
    error = serializers.CharField(required=False)


@extend_schema_serializer(component_name="ProjectJob")
class ProjectJobDocument(serializers.Serializer):
    """A job of a project."""

    uuid = serializers.UUIDField()
    job_id = serializers.CharField(help_text="The id of the job in the native API.")
    status = serializers.ChoiceField(choices=[str(status) for status in BencherStatus])
    spec = SpecDocument()
    runner = serializers.UUIDField(allow_null=True)
    claimed = serializers.DateTimeField(allow_null=True)
    started = serializers.DateTimeField(allow_null=True)
    completed = serializers.DateTimeField(allow_null=True)
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()
    output = RunnerOutputDocument(
        required=False, help_text="Only of one job that has run, for an authenticated caller, if it is stored."
    )
