"""Serializers of job specs, one per job type. All protocols that accept specs share them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from orchestrator.http.api.fields import (
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
    StrictSerializer,
    parse,
)
from orchestrator.http.api.payload_serializers import PayloadSpecInput, build_payload_spec
from runtime_jobs import validators
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.specs import (
    PAYLOAD_TYPES,
    RUNTIME,
    STEPS,
    Cache,
    JobSpec,
    Pattern,
    RepositorySource,
    RuntimeSpec,
    StepsSpec,
)
from runtime_jobs.specs import steps as steps_rules

BIGINT = 2**63 - 1
MAX_TIMEOUT_SECONDS = 2**31 - 1


class SourceInput(StrictSerializer):
    """Repository and commit (`source` of document 000)."""

    kind = StrictChoiceField(choices=["github"])
    repo_url = StrictCharField(max_length=512, help_text="https://HOST/OWNER/REPO, with or without .git")
    owner = StrictCharField(pattern=validators.NAME.pattern, check=validators.validate_name)
    repo = StrictCharField(pattern=validators.NAME.pattern, check=validators.validate_name)
    ref = StrictCharField(required=False, allow_null=True, default=None, max_length=255, check=validators.validate_ref)
    git_commit = StrictCharField(pattern=f"({validators.COMMIT.pattern})", check=validators.validate_commit)
    pull_request_number = StrictIntegerField(
        required=False, allow_null=True, default=None, min_value=1, max_value=BIGINT
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        problem = validators.validate_repo_url(
            attrs["repo_url"], owner=attrs["owner"], repo=attrs["repo"], hosts=settings.REPOSITORY_HOSTS
        )
        if problem:
            raise serializers.ValidationError({"repo_url": problem})
        return attrs


class TraceField(StrictChoiceField):
    """The level of trace that a job asks for."""

    def __init__(self) -> None:
        """Take no arguments: the field is the same in every spec."""
        super().__init__(
            choices=JobTrace.values,
            required=False,
            allow_null=True,
            default=None,
            help_text="What is recorded of the commands. `full`: processes, network and files. `network`: no files. "
            "`none`: nothing, and the commands run faster. Default: as the project says, else the pool, else `full` "
            "for jobs of type `runtime` and `none` for all others.",
        )


class ExecutionInput(StrictSerializer):
    """Command and its permissions (`execution` of document 000)."""

    working_directory = StrictCharField(
        required=False, default=".", max_length=1024, check=validators.validate_directory
    )
    command = serializers.ListField(
        child=StrictCharField(allow_blank=True, max_length=1024), allow_empty=False, max_length=64
    )
    timeout_seconds = StrictIntegerField(min_value=1, max_value=MAX_TIMEOUT_SECONDS)
    allow_network = StrictBooleanField(required=False, default=False)
    allow_exec = StrictBooleanField(required=False, default=True)
    trace = TraceField()

    def validate_command(self, command: list[str]) -> list[str]:
        if problem := validators.validate_command(command):
            raise serializers.ValidationError(problem)
        return command


class RuntimeSpecInput(StrictSerializer):
    """Spec of a job of type `runtime`."""

    source = SourceInput()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionInput()


class ArtifactPatternFields(serializers.Serializer):
    """Pattern of the files that are artifacts. `path` is another name for `path_glob`."""

    type = StrictCharField(required=False, default="file", pattern=steps_rules.KIND.pattern)
    path_glob = StrictCharField(required=False, max_length=1024, check=steps_rules.validate_pattern)
    path = StrictCharField(required=False, max_length=1024, check=steps_rules.validate_pattern)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = [attrs[name] for name in ("path_glob", "path") if name in attrs]
        if len(given) != 1:
            raise serializers.ValidationError({"path_glob": "Exactly one of path_glob and path is required."})
        return {"type": attrs["type"], "path_glob": given[0]}


class CacheFields(serializers.Serializer):
    """Paths that a worker may keep between jobs."""

    type = StrictCharField(pattern=steps_rules.KIND.pattern)
    key = StrictCharField(max_length=255, check=wrong_label)
    paths = serializers.ListField(
        child=StrictCharField(max_length=1024, check=wrong_label), allow_empty=False, max_length=32
    )
    read_only = StrictBooleanField(required=False, default=False)  # type: ignore[assignment] # a field, as `source` above


class StepsFields(serializers.Serializer):
    """Fields that a `steps` job has in every protocol."""

    name = StrictCharField(
        max_length=100, check=lambda name: None if name.isprintable() else "Only printable characters are allowed."
    )
    steps = serializers.ListField(
        child=StrictCharField(max_length=steps_rules.MAX_STEP_BYTES, check=steps_rules.validate_step),
        allow_empty=False,
        max_length=steps_rules.MAX_STEPS,
        help_text="Command lines for `sh -c`, executed in order until one fails.",
    )
    image = StrictCharField(required=False, allow_null=True, default=None, pattern=steps_rules.IMAGE_NAME.pattern)


class ArtifactPatternInput(ArtifactPatternFields, StrictSerializer):
    """Pattern of the files that are artifacts. `path` is another name for `path_glob`."""


class CacheInput(CacheFields, StrictSerializer):
    """Paths that a worker may keep between jobs."""


class StepsSpecInput(StepsFields, StrictSerializer):
    """Spec of a job of type `steps`."""

    timeout_seconds = StrictIntegerField(
        min_value=1, max_value=MAX_TIMEOUT_SECONDS, help_text="Time limit of all steps together."
    )
    working_directory = StrictCharField(
        required=False, default=".", max_length=1024, check=validators.validate_directory
    )
    environment = serializers.DictField(
        child=StrictCharField(allow_blank=True, max_length=steps_rules.MAX_VALUE_LENGTH), required=False, default=dict
    )
    artifacts = serializers.ListField(
        child=ArtifactPatternInput(), required=False, default=list, max_length=steps_rules.MAX_PATTERNS
    )
    caches = serializers.ListField(child=CacheInput(), required=False, default=list, max_length=steps_rules.MAX_CACHES)
    source = SourceInput(required=False, allow_null=True, default=None)  # type: ignore[assignment] # as above
    allow_network = StrictBooleanField(required=False, default=False)
    trace = TraceField()

    def validate_environment(self, environment: dict[str, str]) -> dict[str, str]:
        if problem := steps_rules.validate_environment(environment):
            raise serializers.ValidationError(problem)
        return environment


def build_source(validated: dict[str, Any]) -> RepositorySource:
    """Return the source for the validated data of `SourceInput`."""
    return RepositorySource(**{name: value for name, value in validated.items() if name != "kind"})


def build_runtime_spec(validated: dict[str, Any]) -> RuntimeSpec:
    """Return the spec for the validated `source` and `execution`."""
    source, execution = build_source(validated["source"]), validated["execution"]
    return RuntimeSpec(**vars(source), **execution | {"command": tuple(execution["command"])})


def build_steps_spec(validated: dict[str, Any]) -> StepsSpec:
    """Return the spec for the validated data of `StepsSpecInput`."""
    converted = {
        "steps": tuple(validated["steps"]),
        "artifacts": tuple(Pattern(**pattern) for pattern in validated["artifacts"]),
        "caches": tuple(Cache(**cache | {"paths": tuple(cache["paths"])}) for cache in validated["caches"]),
        "source": build_source(validated["source"]) if validated["source"] else None,
    }
    return StepsSpec(**validated | converted)


class SpecParser(NamedTuple):
    """Serializer of a spec, and the function that builds the spec from the validated data."""

    serializer: type[StrictSerializer]
    build: Callable[[dict[str, Any]], JobSpec]


SPEC_PARSERS = {
    RUNTIME: SpecParser(RuntimeSpecInput, build_runtime_spec),
    STEPS: SpecParser(StepsSpecInput, build_steps_spec),
    **{job_type: SpecParser(PayloadSpecInput, partial(build_payload_spec, job_type)) for job_type in PAYLOAD_TYPES},
}
_SPEC_SERIALIZERS = list(dict.fromkeys(parser.serializer for parser in SPEC_PARSERS.values()))


def parse_spec(job_type: str, data: Any) -> JobSpec:
    """Parse the spec of a job of this type.

    Raises:
        ValidationError: The spec is invalid.
    """
    parser = SPEC_PARSERS[job_type]
    return parser.build(parse(parser.serializer, data))


class OciSpecOutput(serializers.Serializer):
    """Spec of a job of type `oci`, which runs of the Bencher API create."""

    spec = serializers.UUIDField(help_text="The hardware spec.")
    config = serializers.DictField(help_text="The job config, as the runner receives it.")


@extend_schema_field(PolymorphicProxySerializer("JobSpec", _SPEC_SERIALIZERS, resource_type_field_name=None))
class AnySpec(serializers.DictField):
    """Spec of any job type. `parse_spec` validates it once the type is known."""


@extend_schema_field(
    PolymorphicProxySerializer(
        "AnyJobSpec",
        [*_SPEC_SERIALIZERS, OciSpecOutput],
        resource_type_field_name=None,
    )
)
class AnySpecOutput(serializers.DictField):
    """Spec of any job type in a response."""
