"""Requests of `POST /v0/run`: a job as a member `job` or as the members `image` and `spec`, or results without a job.

Unknown members are ignored, and null counts as absent. `orchestrator.protocols.bencher.reports` describes the response.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from rest_framework import serializers

from orchestrator.core.datetimes import INVALID_TIMESTAMP, parse_timestamp
from orchestrator.http.api.fields import (
    StrictBooleanField,
    StrictCharField,
    StrictChoiceField,
    StrictIntegerField,
)
from orchestrator.images.references import MAX_REFERENCE_LENGTH, ImageReference, InvalidReference, parse_reference
from orchestrator.protocols.bencher.fields import LenientSerializer
from orchestrator.protocols.bencher.resource_ids import parse_uuid
from orchestrator.protocols.bencher.runs.context import RunContext
from orchestrator.protocols.bencher.runs.request import BenchmarkJob, RunRequest
from orchestrator.protocols.bencher.wire import timestamp
from orchestrator.results.adapters import AdapterName
from orchestrator.results.models import MAX_BRANCH_NAME_LENGTH
from runtime_jobs.resource_names import MAX_SLUG_LENGTH, is_slug, validate_resource_name
from runtime_jobs.specs import oci

MAX_CONTEXT = 64
DEFAULT_BRANCH: Final = "main"
DEFAULT_TESTBED: Final = "localhost"
GIT_HASH: Final = "[0-9a-f]{40}"


def resource_id_problem(text: str) -> str | None:
    """Return what is wrong with a UUID or slug in a body, or None."""
    if parse_uuid(text) or is_slug(text):
        return None
    return f"Must be a UUID, or a slug of at most {MAX_SLUG_LENGTH} characters."


def branch_problem(text: str) -> str | None:
    """Return what is wrong with the name of a branch, or None."""
    return None if text == text.strip() else "Must not begin or end with blanks."


class RunTimestampField(serializers.DateTimeField):
    """RFC 3339 timestamp with an offset, of any year."""

    def to_internal_value(self, data: Any) -> datetime:
        found = parse_timestamp(data)
        if found is None:
            raise serializers.ValidationError(INVALID_TIMESTAMP)
        return found


class IdempotencyKeyField(serializers.UUIDField):
    """UUID as a string."""

    def to_internal_value(self, data: Any) -> UUID:
        found = parse_uuid(data) if isinstance(data, str) else None
        if found is None:
            raise serializers.ValidationError("Must be a UUID.")
        return found


class UnsupportedField(serializers.JSONField):
    """Member that this server does not support: without content it is ignored, with content it is refused.

    Dropping it would let a regression gate pass whatever the results are.
    """

    def to_internal_value(self, data: Any) -> Any:
        if any(data.values()) if isinstance(data, dict) else data:
            raise serializers.ValidationError(f"This server does not support {self.label}. Send the run without them.")
        return None


def _optional(field: Callable[..., serializers.Field], **options: Any) -> Any:
    return field(required=False, allow_null=True, **options)


def _texts(limit: int) -> Any:
    return _optional(serializers.ListField, child=StrictCharField(allow_blank=True), max_length=limit)


class RunSettingsInput(LenientSerializer):
    """Settings with which the results are read."""

    adapter = _optional(StrictChoiceField, choices=AdapterName.values, help_text="Default: magic.")
    average = _optional(StrictChoiceField, choices=list(oci.AVERAGES))
    fold = _optional(StrictChoiceField, choices=list(oci.FOLDS))


class BenchmarkJobInput(LenientSerializer):
    """The job of a run."""

    image = StrictCharField(max_length=MAX_REFERENCE_LENGTH, help_text="[registry/]project[:tag][@digest]")
    spec = _optional(StrictCharField, check=resource_id_problem, help_text="UUID or slug of a hardware spec.")
    entrypoint = _texts(oci.MAX_ENTRYPOINT)
    cmd = _texts(oci.MAX_CMD)
    env = _optional(serializers.DictField, child=StrictCharField(allow_blank=True))
    timeout = _optional(
        StrictIntegerField,
        min_value=1,
        max_value=oci.MAX_TIMEOUT_SECONDS,
        help_text="Seconds; reduced to the maximum of the plan.",
    )
    file_paths = _texts(oci.MAX_FILE_PATHS)
    build_time = _optional(StrictBooleanField)
    file_size = _optional(StrictBooleanField)
    iter = _optional(StrictIntegerField, min_value=0, max_value=oci.MAX_ITERATIONS)
    allow_failure = _optional(StrictBooleanField)
    backdate = _optional(RunTimestampField)

    def validate_image(self, text: str) -> ImageReference:
        return _reference(text)

    def validate_backdate(self, backdate: datetime | None) -> datetime | None:
        if backdate is not None and backdate > oci.LATEST_BACKDATE:
            raise serializers.ValidationError(f"Must be at most {timestamp(oci.LATEST_BACKDATE)}.")
        return backdate

    def validate_env(self, env: dict[str, str] | None) -> dict[str, str] | None:
        if env is not None and (problem := oci.validate_variables(env)):
            raise serializers.ValidationError(problem)
        return env


def _reference(text: str) -> ImageReference:
    try:
        return parse_reference(text)
    except InvalidReference as error:
        raise serializers.ValidationError(str(error)) from None


class RunInput(LenientSerializer):
    """POST /v0/run. `image` and `spec` are the form of document 002; `job` is that of Bencher's command line."""

    project = _optional(StrictCharField, check=resource_id_problem, help_text="UUID or slug. A new slug is created.")
    branch = _optional(StrictCharField, check=branch_problem, max_length=MAX_BRANCH_NAME_LENGTH)
    hash = _optional(StrictCharField, pattern=GIT_HASH)
    testbed = _optional(StrictCharField, check=validate_resource_name)
    start_time = _optional(RunTimestampField, help_text="Required without `image`.")
    end_time = _optional(RunTimestampField, help_text="Required without `image`.")
    results = _optional(
        serializers.ListField,
        child=StrictCharField(allow_blank=True),
        help_text="Output of benchmarks. Required without `image`, ignored with `job`.",
    )
    settings = _optional(RunSettingsInput)
    thresholds = _optional(UnsupportedField, label="thresholds", help_text="Not supported: with content it is 400.")
    start_point = _optional(
        UnsupportedField, label="start points of branches", help_text="Not supported: with content it is 400."
    )
    context = _optional(serializers.DictField, child=StrictCharField(allow_blank=True))
    idempotency_key = _optional(IdempotencyKeyField)
    spec_reset = _optional(StrictBooleanField, help_text="Do not use the hardware spec of the testbed.")
    job = _optional(BenchmarkJobInput)
    image = _optional(StrictCharField, max_length=MAX_REFERENCE_LENGTH, help_text="Digest of an image, or a reference.")
    spec = _optional(StrictCharField, check=resource_id_problem, help_text="UUID or slug of a hardware spec.")

    def validate_context(self, context: dict[str, str] | None) -> dict[str, str] | None:
        if context is not None and len(context) > MAX_CONTEXT:
            raise serializers.ValidationError(f"At most {MAX_CONTEXT} keys are allowed.")
        return context

    def validate_image(self, text: str | None) -> ImageReference | None:
        if text is None:
            return None
        if oci.IMAGE_DIGEST.fullmatch(text):  # of an image of the project that the request names
            return ImageReference.of_digest(text)
        return _reference(text)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check the combination of `image`, `spec` and `results` (document 002), or of `job` and the others."""
        has_image, has_spec = "image" in attrs, "spec" in attrs
        if "job" in attrs and (has_image or has_spec):
            raise serializers.ValidationError({"job": "Send either `job`, or `image` and `spec`."})
        if has_image and not has_spec:
            raise serializers.ValidationError({"spec": "A spec is required for an execution by a runner."})
        if has_spec and not has_image:
            raise serializers.ValidationError({"image": "An image is required for an execution by a runner."})
        if has_image and attrs.get("results"):
            raise serializers.ValidationError({"results": "Results and an image cannot be sent together."})
        required = () if has_image else ("start_time", "end_time", "results")
        if missing := [name for name in required if name not in attrs]:
            raise serializers.ValidationError(dict.fromkeys(missing, "This field is required."))
        if not has_image and "job" not in attrs and not attrs["results"]:
            raise serializers.ValidationError({"results": "Send the output of a benchmark, or an image to execute."})
        return attrs

    def run_request(self) -> RunRequest:
        """Return the validated request."""
        values: dict[str, Any] = self.validated_data
        context, settings = RunContext(values.get("context", {})), values.get("settings", {})
        job = _run_job(values)
        testbed = values.get("testbed")
        if testbed is None and job is None:
            testbed = _name(context.operating_system) or DEFAULT_TESTBED
        return RunRequest(
            project=values.get("project"),
            branch=values.get("branch") or (context.branch or DEFAULT_BRANCH)[:MAX_BRANCH_NAME_LENGTH],
            git_hash=values.get("hash") or context.git_hash,
            testbed=testbed,
            start_time=values.get("start_time"),
            end_time=values.get("end_time"),
            results=tuple(values.get("results", ())),
            adapter=settings.get("adapter", AdapterName.MAGIC),
            average=settings.get("average"),
            fold=settings.get("fold"),
            context=context,
            idempotency_key=values.get("idempotency_key"),
            spec_reset=values.get("spec_reset", False),
            job=job,
        )


def _run_job(values: dict[str, Any]) -> BenchmarkJob | None:
    if "image" in values:
        return BenchmarkJob(reference=values["image"], image=None, spec=values["spec"])
    if "job" not in values:
        return None
    job: dict[str, Any] = dict(values["job"])
    backdate = job.pop("backdate", None)
    reference: ImageReference = job.pop("image")
    iterations, timeout_seconds, spec = job.pop("iter", None), job.pop("timeout", None), job.pop("spec", None)
    others: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in job.items()}
    return BenchmarkJob(
        reference=reference,
        image=reference.text,
        spec=spec,
        timeout_seconds=timeout_seconds,
        iterations=iterations,
        backdate=None if backdate is None else timestamp(backdate),
        **others,
    )


def _name(text: str | None) -> str | None:
    return None if text is None or validate_resource_name(text) else text
