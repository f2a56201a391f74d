"""What callers may send of a job's spec, by its type, field by field: the same for every door that takes one."""

from collections.abc import Callable
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
from runtime_jobs import validators
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.specs import RUNTIME, STEPS, Cache, JobSpec, Pattern, RepositorySource, RuntimeSpec, StepsSpec
from runtime_jobs.specs import steps as of_steps

BIGINT = 2**63 - 1
MAX_TIMEOUT_SECONDS = 2**31 - 1


class SourceSent(StrictSerializer):
    """Document 000's `source`."""

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
        wrong = validators.validate_repo_url(
            attrs["repo_url"], owner=attrs["owner"], repo=attrs["repo"], hosts=settings.REPOSITORY_HOSTS
        )
        if wrong:
            raise serializers.ValidationError({"repo_url": wrong})
        return attrs


class ExecutionSent(StrictSerializer):
    """Document 000's `execution`."""

    working_directory = StrictCharField(
        required=False, default=".", max_length=1024, check=validators.validate_directory
    )
    command = serializers.ListField(
        child=StrictCharField(allow_blank=True, max_length=1024), allow_empty=False, max_length=64
    )
    timeout_seconds = StrictIntegerField(min_value=1, max_value=MAX_TIMEOUT_SECONDS)
    allow_network = StrictBooleanField(required=False, default=False)
    allow_exec = StrictBooleanField(required=False, default=True)

    def validate_command(self, command: list[str]) -> list[str]:
        if wrong := validators.validate_command(command):
            raise serializers.ValidationError(wrong)
        return command


class RuntimeSpecSent(StrictSerializer):
    """Type `runtime`."""

    source = SourceSent()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionSent()


class PatternSent(StrictSerializer):
    """`path` is another name for `path_glob`."""

    type = StrictCharField(required=False, default="file", pattern=of_steps.KIND.pattern)
    path_glob = StrictCharField(required=False, max_length=1024, check=of_steps.validate_pattern)
    path = StrictCharField(required=False, max_length=1024, check=of_steps.validate_pattern)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = [attrs[name] for name in ("path_glob", "path") if name in attrs]
        if len(given) != 1:
            raise serializers.ValidationError({"path_glob": "Give this one, or path."})
        return {"type": attrs["type"], "path_glob": given[0]}


class CacheSent(StrictSerializer):
    type = StrictCharField(pattern=of_steps.KIND.pattern)
    key = StrictCharField(max_length=255, check=wrong_label)
    paths = serializers.ListField(
        child=StrictCharField(max_length=1024, check=wrong_label), allow_empty=False, max_length=32
    )
    read_only = StrictBooleanField(required=False, default=False)  # type: ignore[assignment] # a field here, as `source` above


class StepsSpecSent(StrictSerializer):
    """Type `steps`."""

    name = StrictCharField(
        max_length=100, check=lambda name: None if name.isprintable() else "Printable characters only."
    )
    steps = serializers.ListField(
        child=StrictCharField(max_length=of_steps.MAX_STEP_BYTES, check=of_steps.validate_step),
        allow_empty=False,
        max_length=of_steps.MAX_STEPS,
        help_text="Each a line for `sh -c`, in order; the first that fails is the last.",
    )
    timeout_seconds = StrictIntegerField(min_value=1, max_value=MAX_TIMEOUT_SECONDS, help_text="Of all steps together.")
    working_directory = StrictCharField(
        required=False, default=".", max_length=1024, check=validators.validate_directory
    )
    environment = serializers.DictField(
        child=StrictCharField(allow_blank=True, max_length=of_steps.MAX_VALUE_LENGTH), required=False, default=dict
    )
    artifacts = serializers.ListField(
        child=PatternSent(), required=False, default=list, max_length=of_steps.MAX_PATTERNS
    )
    caches = serializers.ListField(child=CacheSent(), required=False, default=list, max_length=of_steps.MAX_CACHES)
    image = StrictCharField(required=False, allow_null=True, default=None, pattern=of_steps.IMAGE_NAME.pattern)
    source = SourceSent(required=False, allow_null=True, default=None)  # type: ignore[assignment] # as above
    allow_network = StrictBooleanField(required=False, default=False)

    def validate_environment(self, environment: dict[str, str]) -> dict[str, str]:
        if wrong := of_steps.validate_environment(environment):
            raise serializers.ValidationError(wrong)
        return environment


def source_of(sent: dict[str, Any]) -> RepositorySource:
    return RepositorySource(**{name: value for name, value in sent.items() if name != "kind"})


def runtime_of(sent: dict[str, Any]) -> RuntimeSpec:
    source, execution = source_of(sent["source"]), sent["execution"]
    return RuntimeSpec(**vars(source), **execution | {"command": tuple(execution["command"])})


def steps_of(sent: dict[str, Any]) -> StepsSpec:
    made = {
        "steps": tuple(sent["steps"]),
        "artifacts": tuple(Pattern(**pattern) for pattern in sent["artifacts"]),
        "caches": tuple(Cache(**cache | {"paths": tuple(cache["paths"])}) for cache in sent["caches"]),
        "source": source_of(sent["source"]) if sent["source"] else None,
    }
    return StepsSpec(**sent | made)


class SpecParser(NamedTuple):
    """How a type's spec is read: `shape` checks it, `made` makes the core's value of what it has found."""

    shape: type[StrictSerializer]
    made: Callable[[dict[str, Any]], JobSpec]


SPEC_PARSERS = {RUNTIME: SpecParser(RuntimeSpecSent, runtime_of), STEPS: SpecParser(StepsSpecSent, steps_of)}


def spec_of(job_type: str, data: Any) -> JobSpec:
    """Read the spec of a job of this type. Raises ValidationError."""
    shape, made = SPEC_PARSERS[job_type]
    return made(parse(shape, data))


@extend_schema_field(
    PolymorphicProxySerializer("JobSpec", [sent.shape for sent in SPEC_PARSERS.values()], resource_type_field_name=None)
)
class AnySpec(serializers.DictField):
    """An object whose shape the type says; `spec_of` reads it once that is known."""
