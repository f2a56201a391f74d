"""Refusals that the services raise. Each protocol maps their codes to its answers by a table of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime_jobs.workflows.diagnostics import Diagnostic


class LifecycleError(Exception):
    """An operation was refused and nothing has changed. `code` is stable; `facts` are further members of the answer."""

    code = "error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class NotFound(LifecycleError):
    """The resource does not exist, or the caller may not see it. Both answers are equal."""

    code = "not_found"


class Invalid(LifecycleError):
    """The request is malformed. `errors` maps the path of a field to its errors."""

    code = "invalid"

    def __init__(self, errors: dict[str, list[str]], message: str = "The request is not valid.") -> None:
        super().__init__(message)
        self.errors = errors


class BlockedUrl(Invalid):
    """The server may not send requests to this URL: it is malformed, or its addresses are not public."""

    code = "blocked_url"

    def __init__(self, reason: str) -> None:
        super().__init__({"url": [reason]}, reason)


class InvalidDependency(Invalid):
    """A dependency is not an existing job of the same organization."""

    code = "invalid_dependency"


class RecordedError(LifecycleError):
    """A refusal that was worded before.

    It is that of one entry of a batch call, or the stored answer of an earlier request with the same key.
    """

    code = "invalid"

    def __init__(self, code: str, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message, **facts)
        self.code = code


class TimeoutAbovePlan(LifecycleError):
    """The requested timeout exceeds that of the organization's plan."""

    code = "timeout_above_plan"


class FeatureNotEnabled(LifecycleError):
    """The organization has no hosted runtime analysis."""

    code = "feature_not_enabled"


class ProjectNotEnabled(LifecycleError):
    """The project does not exist or is not enabled."""

    code = "project_not_enabled"


class RepositoryNotAllowed(LifecycleError):
    """The repository is not in the list of the project."""

    code = "repository_not_allowed"


class PoolForbidden(LifecycleError):
    """The worker is not registered in this pool, or the project does not use the pool."""

    code = "pool_forbidden"


class PriorityForbidden(LifecycleError):
    """The priority exceeds that of the plan, or is an emergency without an emergency limit."""

    code = "priority_forbidden"


class QuotaExceeded(LifecycleError):
    """The organization has reached one of its limits.

    Facts: `limit`, `current` and `retry_after` in seconds.
    """

    code = "queue_full"


class QueueFull(QuotaExceeded):
    """The organization has as many waiting jobs as its plan allows."""


class SubmitRateExceeded(QuotaExceeded):
    """The organization submits faster than its plan allows: `limit` jobs a minute, `burst` of them at once."""

    code = "submit_rate_exceeded"


class QuotaContended(LifecycleError):
    """Concurrent submits took the organization's quota at each attempt. `retry_after` is in seconds."""

    code = "busy"


class TooManyConcurrencyKeys(QuotaExceeded):
    """The organization has as many concurrency keys as it may have."""

    code = "too_many_concurrency_keys"


class StorageQuotaExceeded(LifecycleError):
    """The organization stores as many bytes as its plan allows: `limit`."""

    code = "storage_quota_exceeded"


class UploadMismatch(LifecycleError):
    """The uploaded object has not the announced size."""

    code = "size_mismatch"


class OperatorOnly(LifecycleError):
    """Only an operator may do this: a tenant does not lift a limit that an operator has set."""

    code = "operator_only"


class LimitNotEditable(LifecycleError):
    """The limit is derived from another setting, which another operation changes."""

    code = "not_settable"


class IncidentOfBreaker(LifecycleError):
    """The incident of a breaker is resolved when the breaker closes, and not by a person."""

    code = "not_settable"


class VersionConflict(LifecycleError):
    """The resource has changed since the caller read it. `version` is the current one."""

    code = "version_conflict"


class InvalidTransition(LifecycleError):
    """No transition leads from the job's state to the requested one."""

    code = "illegal_move"


class AlreadyFinal(LifecycleError):
    """The job has ended. `status` is its final status."""

    code = "already_final"


class NotFinal(LifecycleError):
    """Only a job that has ended can be retried."""

    code = "not_final"


class NotRetryable(LifecycleError):
    """Jobs of this type have no further attempts: something outside of the job belongs to this attempt."""

    code = "not_retryable"


class NotReplayable(LifecycleError):
    """A replay would prove nothing. `reasons` says what of the job is not fixed."""

    code = "not_replayable"


class StoredInputMismatch(LifecycleError):
    """The stored input of a job is not the one that was submitted: another digest belongs to it."""

    code = "digest_mismatch"


class AlreadyRetried(LifecycleError):
    """A newer attempt exists; retry that one."""

    code = "already_retried"


class CancelNotRequested(LifecycleError):
    """A worker acknowledged a cancel that was not requested."""

    code = "cancel_not_requested"


class Conflict(LifecycleError):
    """Another final report of the job was accepted before."""

    code = "conflict"


class ResourceConflict(LifecycleError):
    """The current state of the resource, or another resource with the same name, does not permit the change."""

    code = "conflict"


class WorkflowRejected(Invalid):
    """A workflow file is wrong. `diagnostics` has the errors with path and line."""

    def __init__(self, diagnostics: "Sequence[Diagnostic]") -> None:
        """Derive the errors of fields from the diagnostics."""
        errors: dict[str, list[str]] = {}
        for diagnostic in diagnostics:
            errors.setdefault(diagnostic.path or "workflow", []).append(f"Line {diagnostic.line}: {diagnostic.message}")
        super().__init__(errors, "The workflow file is not valid.")
        self.diagnostics = tuple(diagnostics)


class WorkflowUnreadable(LifecycleError):
    """The workflow file cannot be read at the commit."""

    code = "conflict"


class MirrorOutdated(LifecycleError):
    """The mirror of a repository lacks a ref, commit or file, and an update was requested. `retry_after`: seconds."""

    code = "mirror_outdated"


class PayloadDigestMismatch(LifecycleError):
    """The digest that the client sent is not that of the payload, or of the plan that the payload names."""

    code = "digest_mismatch"


class ArtifactDigestMismatch(LifecycleError):
    """The digest that the client sent is not that of the uploaded artifact. Its content was deleted."""

    code = "digest_mismatch"


class InvalidArtifactName(Invalid):
    """The name of an artifact is not a relative path without special parts."""

    code = "invalid_artifact_name"

    def __init__(self, reason: str) -> None:
        super().__init__({"name": [reason]}, reason)


class ArtifactQuotaExceeded(LifecycleError):
    """The job has as many artifacts, or bytes of them, as the plan allows: `limit`."""

    code = "artifact_quota"


class IdempotencyConflict(LifecycleError):
    """The key was used before, with another request."""

    code = "idempotency_conflict"


class ChunkConflict(LifecycleError):
    """A chunk with this number has other bytes."""

    code = "chunk_conflict"


class ChunkGap(LifecycleError):
    """An earlier chunk is missing. `expected_seq` says which."""

    code = "chunk_gap"
