"""The operations: the only code that changes jobs, leases and limits.

Each operation is one function and one transaction: it locks, checks, changes and records. Other packages import the
operations from here.
"""

from orchestrator.services.batch_calls import (
    WorkerHeartbeat,
    acknowledge_many,
    complete_many,
    fail_many,
    renew_across_workers,
    renew_many,
)
from orchestrator.services.batches import (
    BatchJob,
    BatchOutcome,
    BatchSubmission,
    cancel_batch,
    rerun_batch,
    submit_batch,
)
from orchestrator.services.breakers import evaluate_breaker, reset_breaker
from orchestrator.services.bulk_submit import BulkOutcome, submit_many
from orchestrator.services.cancellation import cancel, stop_by_worker
from orchestrator.services.claim_next import ClaimRequest, Finished, complete_and_claim, fail_and_claim
from orchestrator.services.claiming import Claimed, claim, claim_many
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from orchestrator.services.credentials import create_api_token, register_worker, revoke_api_token, rotate_webhook_secret
from orchestrator.services.dependency_propagation import propagate_pending, unblock
from orchestrator.services.expiry import exceeded_limit, expire, force_cancel, time_out
from orchestrator.services.finish import ArtifactRef, CompleteMessage, FailMessage, acknowledge_cancel, complete, fail
from orchestrator.services.hardware_specs import change_spec, create_spec, delete_spec
from orchestrator.services.heartbeat import HeartbeatResult, HeartbeatUpdate, acknowledge, release, renew, report
from orchestrator.services.limits import (
    keep_shares,
    pause,
    remove_expired,
    resume,
    set_limit,
    set_pool_policy,
    set_rate,
    sync_plan,
    throttle,
)
from orchestrator.services.logs import append_log
from orchestrator.services.operator_actions import revoke, revoke_leases_of, rotate_worker_token, set_worker_state
from orchestrator.services.personal_keys import create_personal_key, revoke_personal_key
from orchestrator.services.priority import prioritize, raise_queued_priority
from orchestrator.services.pruning import delete_finished_jobs, delete_log
from orchestrator.services.retries import RESEND, retry, reupload
from orchestrator.services.runners import (
    add_runner_spec,
    change_runner,
    create_runner,
    remove_runner_spec,
    rotate_runner_key,
)
from orchestrator.services.settlement import complete_late, give_up, settle
from orchestrator.services.submission import Submission, submit
from orchestrator.services.tenants import claim_organization
from orchestrator.services.transitions import OperationResult

__all__ = [
    "RESEND",
    "ArtifactRef",
    "BatchJob",
    "BatchOutcome",
    "BatchSubmission",
    "BulkOutcome",
    "ClaimRequest",
    "Claimed",
    "CompleteMessage",
    "ConcurrencyGroup",
    "FailMessage",
    "Finished",
    "HeartbeatResult",
    "HeartbeatUpdate",
    "OnConflict",
    "OperationResult",
    "Submission",
    "WorkerHeartbeat",
    "acknowledge",
    "acknowledge_cancel",
    "acknowledge_many",
    "add_runner_spec",
    "append_log",
    "cancel",
    "cancel_batch",
    "change_runner",
    "change_spec",
    "claim",
    "claim_many",
    "claim_organization",
    "complete",
    "complete_and_claim",
    "complete_late",
    "complete_many",
    "create_api_token",
    "create_personal_key",
    "create_runner",
    "create_spec",
    "delete_finished_jobs",
    "delete_log",
    "delete_spec",
    "evaluate_breaker",
    "exceeded_limit",
    "expire",
    "fail",
    "fail_and_claim",
    "fail_many",
    "force_cancel",
    "give_up",
    "keep_shares",
    "pause",
    "prioritize",
    "propagate_pending",
    "raise_queued_priority",
    "register_worker",
    "release",
    "remove_expired",
    "remove_runner_spec",
    "renew",
    "renew_across_workers",
    "renew_many",
    "report",
    "rerun_batch",
    "reset_breaker",
    "resume",
    "retry",
    "reupload",
    "revoke",
    "revoke_api_token",
    "revoke_leases_of",
    "revoke_personal_key",
    "rotate_runner_key",
    "rotate_webhook_secret",
    "rotate_worker_token",
    "set_limit",
    "set_pool_policy",
    "set_rate",
    "set_worker_state",
    "settle",
    "stop_by_worker",
    "submit",
    "submit_batch",
    "submit_many",
    "sync_plan",
    "throttle",
    "time_out",
    "unblock",
]
