"""Requests and responses of `/api/v1/runs`. Unknown fields are ignored. `wire.py` builds the responses."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from orchestrator.http.api.fields import SanitizedTextField, StrictBooleanField, StrictCharField, StrictIntegerField
from orchestrator.http.api.spec_serializers import (
    MAX_TIMEOUT_SECONDS,
    ArtifactPatternFields,
    CacheFields,
    StepsFields,
    build_steps_spec,
)
from orchestrator.protocols.delta.states import CANCEL_REQUESTED, RUN_JOB_STATES, RUN_STATES, TIMED_OUT
from orchestrator.services.batches import MAX_JOBS
from runtime_jobs import validators
from runtime_jobs.models import FailureExplanation, Project
from runtime_jobs.specs import RepositorySource, StepsSpec
from runtime_jobs.specs import steps as steps_rules

REPOSITORY = "[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}"
JOB_STATES = list(dict.fromkeys([*RUN_JOB_STATES.values(), CANCEL_REQUESTED, TIMED_OUT]))

# --- requests ---------------------------------------------------------------------------------------------------------


class RunPattern(ArtifactPatternFields):
    """Pattern of files to store as artifacts. `path` is another name for `path_glob`."""


class RunCache(CacheFields):
    """Paths that the runner may keep between jobs."""


class RunJob(StepsFields):
    """A job of type `steps` in the terms of document 001. Time limit and network default to those of the project."""

    workdir = StrictCharField(required=False, default=".", max_length=1024, check=validators.validate_directory)
    env = serializers.DictField(
        child=StrictCharField(allow_blank=True, max_length=steps_rules.MAX_VALUE_LENGTH), required=False, default=dict
    )
    artifacts = serializers.ListField(
        child=RunPattern(), required=False, default=list, max_length=steps_rules.MAX_PATTERNS
    )
    caches = serializers.ListField(child=RunCache(), required=False, default=list, max_length=steps_rules.MAX_CACHES)
    timeout_seconds = StrictIntegerField(
        required=False, default=None, allow_null=True, min_value=1, max_value=MAX_TIMEOUT_SECONDS
    )
    allow_network = StrictBooleanField(required=False, default=None, allow_null=True)
    required = StrictBooleanField(  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
        required=False, default=True, help_text="False: the run can succeed although this job fails."
    )

    def validate_env(self, env: dict[str, str]) -> dict[str, str]:
        if problem := steps_rules.validate_environment(env):
            raise serializers.ValidationError(problem)
        return env


class StartRun(serializers.Serializer):
    """POST /api/v1/runs. Without `jobs` the run has one job: the configured command of the project."""

    repo_id = StrictCharField(pattern=REPOSITORY, help_text="owner/name")
    ref = StrictCharField(max_length=255, check=validators.validate_ref)
    commit_sha = StrictCharField(
        required=False,
        allow_null=True,
        default=None,
        pattern=f"({validators.COMMIT.pattern})",
        check=validators.validate_commit,
    )
    reason = SanitizedTextField(required=False, allow_null=True, default=None, allow_blank=True, max_length=1000)
    project_slug = StrictCharField(
        required=False,
        allow_null=True,
        default=None,
        max_length=63,
        help_text="Required if several projects run the repository.",
    )
    jobs = serializers.ListField(
        child=RunJob(), required=False, allow_null=True, default=None, allow_empty=False, max_length=MAX_JOBS
    )

    def validate_repo_id(self, repo_id: str) -> str:
        for part in repo_id.split("/"):
            if problem := validators.validate_name(part):
                raise serializers.ValidationError(problem)
        return repo_id

    def validate_jobs(self, jobs: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        names = [job["name"] for job in jobs or ()]
        if len(set(names)) != len(names):
            raise serializers.ValidationError("Each job must have a unique name.")
        return jobs

    def repository(self) -> tuple[str, str]:
        """Return owner and name of the repository."""
        owner, _, name = self.validated_data["repo_id"].partition("/")
        return owner, name.removesuffix(".git")

    def source_at(self, commit: str) -> RepositorySource:
        """Return the source of the run at this commit."""
        owner, name = self.repository()
        return RepositorySource(self.repo_url(), owner, name, self.validated_data["ref"], commit)

    def repo_url(self) -> str:
        """Return the URL of the repository."""
        return f"https://{settings.REPOSITORY_HOSTS[0]}/{'/'.join(self.repository())}.git"

    def commit(self) -> str | None:
        """Return the commit that the request names, in `commit_sha` or as `ref`."""
        ref = self.validated_data["ref"]
        is_commit = validators.COMMIT.fullmatch(ref) is not None
        return self.validated_data["commit_sha"] or (ref if is_commit else None)


def steps_spec(job: dict[str, Any], source: RepositorySource, project: Project) -> StepsSpec:
    """Return the job spec of one validated job of a run."""
    same_fields = {name: job[name] for name in ("name", "steps", "artifacts", "caches", "image")}
    timeout, network = job["timeout_seconds"], job["allow_network"]
    spec = build_steps_spec(
        same_fields
        | {
            "working_directory": job["workdir"],
            "environment": job["env"],
            "timeout_seconds": project.configured_timeout_seconds if timeout is None else timeout,
            "allow_network": project.configured_network if network is None else network,
            "source": None,
        }
    )
    return StepsSpec(**vars(spec) | {"source": source})


class CancelRun(serializers.Serializer):
    """POST /api/v1/runs/{batch_id}/cancel."""

    reason = SanitizedTextField(required=False, allow_null=True, default=None, allow_blank=True, max_length=1000)


class RerunRun(serializers.Serializer):
    """POST /api/v1/runs/{batch_id}/rerun. All fields are ignored."""


# --- responses --------------------------------------------------------------------------------------------------------


class DeltaRun(serializers.Serializer):
    """A run."""

    id = serializers.CharField()
    repo_id = serializers.CharField(allow_null=True)
    ref = serializers.CharField(allow_null=True)
    commit_sha = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(choices=list(RUN_STATES.values()))
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class DeltaRunJob(serializers.Serializer):
    """A job of a run."""

    id = serializers.CharField(help_text="The same for every attempt.")
    run_id = serializers.CharField()
    name = serializers.CharField()
    required = serializers.BooleanField()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    state = serializers.ChoiceField(choices=JOB_STATES)
    attempt_count = serializers.IntegerField()
    reason = serializers.CharField(required=False)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class DeltaAttempt(serializers.Serializer):
    """An attempt of a job."""

    id = serializers.CharField()
    job_id = serializers.CharField()
    attempt_number = serializers.IntegerField()
    state = serializers.ChoiceField(choices=JOB_STATES)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(required=False)
    completed_at = serializers.DateTimeField(required=False)


class DeltaArtifact(serializers.Serializer):
    """Reference to an artifact, as reported by the runner."""

    id = serializers.IntegerField()
    job_attempt_id = serializers.CharField()
    type = serializers.CharField()
    uri = serializers.CharField()
    created_at = serializers.DateTimeField()


class DeltaExplanation(serializers.Serializer):
    """Probable cause of a failure."""

    id = serializers.IntegerField()
    job_attempt_id = serializers.CharField()
    category = serializers.ChoiceField(choices=FailureExplanation.Category.choices)
    summary = serializers.CharField()
    confidence = serializers.ChoiceField(choices=FailureExplanation.Confidence.choices)
    details = serializers.CharField(required=False)
    created_at = serializers.DateTimeField()


class DeltaRunJobDetail(serializers.Serializer):
    """A job of a run with its attempts, artifacts and explanations."""

    job = DeltaRunJob()
    attempts = DeltaAttempt(many=True)
    artifacts = DeltaArtifact(many=True)
    failure_explanations = DeltaExplanation(many=True)


class DeltaRunDetail(serializers.Serializer):
    """A run with its jobs."""

    run = DeltaRun()
    jobs = DeltaRunJobDetail(many=True)


class DeltaRunSummary(serializers.Serializer):
    """State of a run."""

    run_id = serializers.CharField()
    state = serializers.ChoiceField(choices=list(RUN_STATES.values()))


class DeltaRerun(DeltaRunSummary):
    """A rerun: a new run of the same jobs."""

    original_run = serializers.CharField()
    created = serializers.ChoiceField(choices=["true", "false"], help_text="A string, as in the documents.")
    idempotencyKey = serializers.CharField()  # noqa: N815 the documents' name
