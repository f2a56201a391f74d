"""Models of jobs, events, output, dependencies, repositories, workflow runs, secrets and tenants."""

from runtime_jobs.models.artifacts import CacheEntry, StorageUsage, StoredArtifact
from runtime_jobs.models.batches import Batch
from runtime_jobs.models.dependencies import Dependency, EndedDependency
from runtime_jobs.models.events import JobEvent, OperatorEvent
from runtime_jobs.models.idempotency import IdempotencyKey
from runtime_jobs.models.identity import IdentityKey
from runtime_jobs.models.jobs import Job
from runtime_jobs.models.output import Artifact, FailureExplanation, LogChunk, UnsentRun
from runtime_jobs.models.packs import PackVersion
from runtime_jobs.models.payload_schemas import PayloadSchema
from runtime_jobs.models.repositories import Repository
from runtime_jobs.models.secrets import MaskSnapshot, Secret, Variable
from runtime_jobs.models.step_output import (
    DiscardedLogObject,
    FollowedJob,
    StepAnnotation,
    StepLog,
    WaitingLogChunk,
)
from runtime_jobs.models.steps import JobStep
from runtime_jobs.models.tenants import ApiToken, MemberRole, Membership, Organization, PersonalKey, Plan, Project
from runtime_jobs.models.usage import UsageRecord
from runtime_jobs.models.workflow_runs import (
    RejectedWorkflow,
    RunHold,
    WorkflowEvent,
    WorkflowRun,
    WorkflowSchedule,
    WorkflowTrigger,
)

__all__ = [
    "ApiToken",
    "Artifact",
    "Batch",
    "CacheEntry",
    "Dependency",
    "DiscardedLogObject",
    "EndedDependency",
    "FailureExplanation",
    "FollowedJob",
    "IdempotencyKey",
    "IdentityKey",
    "Job",
    "JobEvent",
    "JobStep",
    "LogChunk",
    "MaskSnapshot",
    "MemberRole",
    "Membership",
    "OperatorEvent",
    "Organization",
    "PackVersion",
    "PayloadSchema",
    "PersonalKey",
    "Plan",
    "Project",
    "RejectedWorkflow",
    "Repository",
    "RunHold",
    "Secret",
    "StepAnnotation",
    "StepLog",
    "StorageUsage",
    "StoredArtifact",
    "UnsentRun",
    "UsageRecord",
    "Variable",
    "WaitingLogChunk",
    "WorkflowEvent",
    "WorkflowRun",
    "WorkflowSchedule",
    "WorkflowTrigger",
]
