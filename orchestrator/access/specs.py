"""What callers may send of a job's spec, by its type, field by field: the same for every door that takes one."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.conf import settings
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from orchestrator.access.fields import Flag, Number, StrictSerializer, Text, Word, read
from runtime_jobs import sources
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.specs import RUNTIME, STEPS, Cache, Pattern, RuntimeSpec, Source, Spec, StepsSpec
from runtime_jobs.specs import steps as of_steps

BIGINT = 2**63 - 1
LONGEST_TIMEOUT = 2**31 - 1


class SourceSent(StrictSerializer):
    """Document 000's `source`."""

    kind = Word(choices=["github"])
    repo_url = Text(max_length=512, help_text="https://HOST/OWNER/REPO, with or without .git")
    owner = Text(pattern=sources.NAME.pattern, check=sources.wrong_name)
    repo = Text(pattern=sources.NAME.pattern, check=sources.wrong_name)
    ref = Text(required=False, allow_null=True, default=None, max_length=255, check=sources.wrong_ref)
    git_commit = Text(pattern=f"({sources.COMMIT.pattern})", check=sources.wrong_commit)
    pull_request_number = Number(required=False, allow_null=True, default=None, min_value=1, max_value=BIGINT)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        wrong = sources.wrong_repo_url(
            attrs["repo_url"], owner=attrs["owner"], repo=attrs["repo"], hosts=settings.REPOSITORY_HOSTS
        )
        if wrong:
            raise serializers.ValidationError({"repo_url": wrong})
        return attrs


class ExecutionSent(StrictSerializer):
    """Document 000's `execution`."""

    working_directory = Text(required=False, default=".", max_length=1024, check=sources.wrong_directory)
    command = serializers.ListField(child=Text(allow_blank=True, max_length=1024), allow_empty=False, max_length=64)
    timeout_seconds = Number(min_value=1, max_value=LONGEST_TIMEOUT)
    allow_network = Flag(required=False, default=False)
    allow_exec = Flag(required=False, default=True)

    def validate_command(self, command: list[str]) -> list[str]:
        if wrong := sources.wrong_command(command):
            raise serializers.ValidationError(wrong)
        return command


class RuntimeSpecSent(StrictSerializer):
    """Type `runtime`."""

    source = SourceSent()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionSent()


class PatternSent(StrictSerializer):
    """`path` is another name for `path_glob`."""

    type = Text(required=False, default="file", pattern=of_steps.KIND.pattern)
    path_glob = Text(required=False, max_length=1024, check=of_steps.wrong_pattern)
    path = Text(required=False, max_length=1024, check=of_steps.wrong_pattern)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = [attrs[name] for name in ("path_glob", "path") if name in attrs]
        if len(given) != 1:
            raise serializers.ValidationError({"path_glob": "Give this one, or path."})
        return {"type": attrs["type"], "path_glob": given[0]}


class CacheSent(StrictSerializer):
    type = Text(pattern=of_steps.KIND.pattern)
    key = Text(max_length=255, check=wrong_label)
    paths = serializers.ListField(child=Text(max_length=1024, check=wrong_label), allow_empty=False, max_length=32)
    read_only = Flag(required=False, default=False)  # type: ignore[assignment] # a field here, as `source` above


class StepsSpecSent(StrictSerializer):
    """Type `steps`."""

    name = Text(max_length=100, check=lambda name: None if name.isprintable() else "Printable characters only.")
    steps = serializers.ListField(
        child=Text(max_length=of_steps.LONGEST_STEP, check=of_steps.wrong_step),
        allow_empty=False,
        max_length=of_steps.MOST_STEPS,
        help_text="Each a line for `sh -c`, in order; the first that fails is the last.",
    )
    timeout_seconds = Number(min_value=1, max_value=LONGEST_TIMEOUT, help_text="Of all steps together.")
    working_directory = Text(required=False, default=".", max_length=1024, check=sources.wrong_directory)
    environment = serializers.DictField(
        child=Text(allow_blank=True, max_length=of_steps.LONGEST_VALUE), required=False, default=dict
    )
    artifacts = serializers.ListField(
        child=PatternSent(), required=False, default=list, max_length=of_steps.MOST_PATTERNS
    )
    caches = serializers.ListField(child=CacheSent(), required=False, default=list, max_length=of_steps.MOST_CACHES)
    image = Text(required=False, allow_null=True, default=None, pattern=of_steps.IMAGE_NAME.pattern)
    source = SourceSent(required=False, allow_null=True, default=None)  # type: ignore[assignment] # as above
    allow_network = Flag(required=False, default=False)

    def validate_environment(self, environment: dict[str, str]) -> dict[str, str]:
        if wrong := of_steps.wrong_environment(environment):
            raise serializers.ValidationError(wrong)
        return environment


def source_of(sent: dict[str, Any]) -> Source:
    return Source(**{name: value for name, value in sent.items() if name != "kind"})


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


class Sent(NamedTuple):
    """How a type's spec is read: `shape` checks it, `made` makes the core's value of what it has found."""

    shape: type[StrictSerializer]
    made: Callable[[dict[str, Any]], Spec]


SENT = {RUNTIME: Sent(RuntimeSpecSent, runtime_of), STEPS: Sent(StepsSpecSent, steps_of)}


def spec_of(job_type: str, data: Any) -> Spec:
    """Read the spec of a job of this type. Raises ValidationError."""
    shape, made = SENT[job_type]
    return made(read(shape, data))


@extend_schema_field(
    PolymorphicProxySerializer("JobSpec", [sent.shape for sent in SENT.values()], resource_type_field_name=None)
)
class AnySpec(serializers.DictField):
    """An object whose shape the type says; `spec_of` reads it once that is known."""
