"""What may be sent about runs. As everywhere at this door, fields that nobody here knows are ignored."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from orchestrator.http.api.fields import SanitizedTextField, StrictBooleanField, StrictCharField, StrictIntegerField
from orchestrator.http.api.spec_serializers import MAX_TIMEOUT_SECONDS, CacheSent, PatternSent, StepsSpecSent, steps_of
from runtime_jobs import validators
from runtime_jobs.models import Project
from runtime_jobs.specs import RepositorySource, StepsSpec
from runtime_jobs.specs import steps as of_steps

MOST_JOBS = 64
REPOSITORY = "[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}"


class Lenient(serializers.Serializer):
    """For a strict one's heirs, before it."""

    def to_internal_value(self, data: Any) -> Any:
        return serializers.Serializer.to_internal_value(self, data)


class RunPattern(Lenient, PatternSent):
    """`path` is another name for `path_glob`."""


class RunCache(Lenient, CacheSent):
    pass


class RunJob(Lenient, StepsSpecSent):
    """A job of type `steps` in document 001's words. Its time and network are the project's unless it says so."""

    working_directory = environment = source = None  # type: ignore[assignment] # under other names, or the run's
    workdir = StrictCharField(required=False, default=".", max_length=1024, check=validators.validate_directory)
    env = serializers.DictField(
        child=StrictCharField(allow_blank=True, max_length=of_steps.MAX_VALUE_LENGTH), required=False, default=dict
    )
    artifacts = serializers.ListField(
        child=RunPattern(), required=False, default=list, max_length=of_steps.MAX_PATTERNS
    )
    caches = serializers.ListField(child=RunCache(), required=False, default=list, max_length=of_steps.MAX_CACHES)
    timeout_seconds = StrictIntegerField(
        required=False, default=None, allow_null=True, min_value=1, max_value=MAX_TIMEOUT_SECONDS
    )
    allow_network = StrictBooleanField(required=False, default=None, allow_null=True)
    required = StrictBooleanField(required=False, default=True, help_text="False: it may fail and the run succeed.")  # type: ignore[assignment] # a field here

    def validate_env(self, env: dict[str, str]) -> dict[str, str]:
        return self.validate_environment(env)


class StartRun(serializers.Serializer):
    """POST /api/v1/runs. Without `jobs`: the project's configured command."""

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
        required=False, allow_null=True, default=None, max_length=63, help_text="Where several run the repository."
    )
    jobs = serializers.ListField(
        child=RunJob(), required=False, allow_null=True, default=None, allow_empty=False, max_length=MOST_JOBS
    )

    def validate_repo_id(self, repo_id: str) -> str:
        for part in repo_id.split("/"):
            if wrong := validators.validate_name(part):
                raise serializers.ValidationError(wrong)
        return repo_id

    def validate_jobs(self, jobs: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        names = [job["name"] for job in jobs or ()]
        if len(set(names)) != len(names):
            raise serializers.ValidationError("Two jobs have the same name.")
        return jobs

    def repository(self) -> tuple[str, str]:
        owner, _, name = self.validated_data["repo_id"].partition("/")
        return owner, name.removesuffix(".git")

    def source_at(self, commit: str) -> RepositorySource:
        owner, name = self.repository()
        return RepositorySource(self.repo_url(), owner, name, self.validated_data["ref"], commit)

    def repo_url(self) -> str:
        return f"https://{settings.REPOSITORY_HOSTS[0]}/{'/'.join(self.repository())}.git"

    def commit(self) -> str | None:
        """As it was said; a ref may be a commit itself."""
        ref = self.validated_data["ref"]
        is_commit = validators.COMMIT.fullmatch(ref) is not None
        return self.validated_data["commit_sha"] or (ref if is_commit else None)


def spec_of(job: dict[str, Any], source: RepositorySource, project: Project) -> StepsSpec:
    """The core's value of a job that was sent."""
    kept = {name: job[name] for name in ("name", "steps", "artifacts", "caches", "image")}
    timeout, network = job["timeout_seconds"], job["allow_network"]
    made = steps_of(
        kept
        | {
            "working_directory": job["workdir"],
            "environment": job["env"],
            "timeout_seconds": project.configured_timeout_seconds if timeout is None else timeout,
            "allow_network": project.configured_network if network is None else network,
            "source": None,
        }
    )
    return StepsSpec(**vars(made) | {"source": source})


class CancelRun(serializers.Serializer):
    reason = SanitizedTextField(required=False, allow_null=True, default=None, allow_blank=True, max_length=1000)


class RerunRun(serializers.Serializer):
    """A body without fields that count."""
