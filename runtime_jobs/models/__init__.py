"""Models of jobs, events, output, dependencies and tenants."""

from runtime_jobs.models.batches import Batch
from runtime_jobs.models.dependencies import Dependency, EndedDependency
from runtime_jobs.models.events import JobEvent, OperatorEvent
from runtime_jobs.models.idempotency import IdempotencyKey
from runtime_jobs.models.jobs import Job
from runtime_jobs.models.output import Artifact, FailureExplanation, LogChunk, UnsentRun
from runtime_jobs.models.tenants import ApiToken, Membership, Organization, PersonalKey, Plan, Project
from runtime_jobs.models.usage import UsageRecord

__all__ = [
    "ApiToken",
    "Artifact",
    "Batch",
    "Dependency",
    "EndedDependency",
    "FailureExplanation",
    "IdempotencyKey",
    "Job",
    "JobEvent",
    "LogChunk",
    "Membership",
    "OperatorEvent",
    "Organization",
    "PersonalKey",
    "Plan",
    "Project",
    "UnsentRun",
    "UsageRecord",
]
