"""What can go wrong with a job, as the core raises it. A front door translates the code with one table of its own."""

from typing import Any


class LifecycleError(Exception):
    """The verb was refused and nothing has changed. `code` is stable; `facts` go beside it on the wire."""

    code = "error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class NotFound(LifecycleError):
    """It does not exist, or the caller may not see it; the two look alike."""

    code = "not_found"


class Invalid(LifecycleError):
    """The request is wrong in itself. `errors` maps a field's path to what is wrong with it."""

    code = "invalid"

    def __init__(self, errors: dict[str, list[str]], message: str = "The request is not valid.") -> None:
        super().__init__(message)
        self.errors = errors


class InvalidDependency(Invalid):
    """A job may depend on jobs of its own organization that exist."""

    code = "invalid_dependency"


class RecordedError(LifecycleError):
    """A refusal that somebody else has worded: a door, of one entry among many; or an earlier request, to be told once
    more. Its `code` is theirs."""

    code = "invalid"

    def __init__(self, code: str, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message, **facts)
        self.code = code


class TimeoutAbovePlan(LifecycleError):
    code = "timeout_above_plan"


class FeatureNotEnabled(LifecycleError):
    """The organization has no hosted runtime analysis."""

    code = "feature_not_enabled"


class ProjectNotEnabled(LifecycleError):
    code = "project_not_enabled"


class RepositoryNotAllowed(LifecycleError):
    code = "repository_not_allowed"


class PoolForbidden(LifecycleError):
    """The worker is not registered in this pool, or the project's jobs do not go there."""

    code = "pool_forbidden"


class PriorityForbidden(LifecycleError):
    """Above what the organization's plan gives its jobs, or an emergency without a limit for those."""

    code = "priority_forbidden"


class QuotaExceeded(LifecycleError):
    """The organization has used up what it may submit or hold for now. Facts: `limit`, `current` and `retry_after` in
    seconds."""

    code = "queue_full"


class QueueFull(QuotaExceeded):
    """The organization has as many waiting jobs as its plan allows."""


class SubmitRateExceeded(QuotaExceeded):
    """The organization submits faster than its plan allows: `limit` jobs a minute, `burst` of them at once."""

    code = "submit_rate_exceeded"


class QuotaContended(LifecycleError):
    """Other submits took the organization's room again and again while this one tried. `retry_after` in seconds."""

    code = "busy"


class TooManyConcurrencyKeys(QuotaExceeded):
    """The organization has as many concurrency keys as it may have."""

    code = "too_many_concurrency_keys"


class OperatorOnly(LifecycleError):
    """An operator set it, or only operators may: a tenant's program does not loosen what holds its tenant."""

    code = "operator_only"


class LimitNotEditable(LifecycleError):
    """The limit follows something else, which another verb changes."""

    code = "not_settable"


class VersionConflict(LifecycleError):
    """It was changed since the caller looked; `version` is that of now."""

    code = "version_conflict"


class InvalidTransition(LifecycleError):
    """The job's state has no way to the wanted one."""

    code = "illegal_move"


class AlreadyFinal(LifecycleError):
    """The job has its one result. `status` says which."""

    code = "already_final"


class NotFinal(LifecycleError):
    """Only a job that has ended can be retried."""

    code = "not_final"


class AlreadyRetried(LifecycleError):
    """A newer attempt exists; retry that one."""

    code = "already_retried"


class CancelNotRequested(LifecycleError):
    code = "cancel_not_requested"


class Conflict(LifecycleError):
    """This end was already told, and told differently."""

    code = "conflict"


class IdempotencyConflict(LifecycleError):
    """The key was used before, with another request."""

    code = "idempotency_conflict"


class ChunkConflict(LifecycleError):
    """A chunk with this number has other bytes."""

    code = "chunk_conflict"


class ChunkGap(LifecycleError):
    """An earlier chunk is missing. `expected_seq` says which."""

    code = "chunk_gap"
