"""The operations that change jobs, leases and limits, and the functions of which they consist.

Each operation is one function and one transaction: it reads, checks, changes and records. Other packages import the
operations from here. An operation that only one protocol or the dispatcher needs is in that package, and changes jobs
by functions of these modules; `tests/test_architecture.py` lists such packages.
"""

from orchestrator.services.actions_runners import (
    find_runner,
    register_runner,
    revoke_registration_tokens,
    revoke_runner,
    rotate_registration_token,
)
from orchestrator.services.artifact_pieces import (
    add_artifact_piece,
    begin_lease_artifact,
    complete_lease_artifact,
    find_artifact_for_piece,
    find_received_artifact,
)
from orchestrator.services.artifacts import (
    abandon_objects,
    begin_artifact,
    begin_cache_entry,
    complete_upload,
    delete_abandoned,
    delete_stored_object,
    find_cache_entry,
)
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
from orchestrator.services.bulk_actions import abort_bulk_action, record_bulk_progress, start_bulk_action
from orchestrator.services.bulk_submit import BulkOutcome, submit_many
from orchestrator.services.cancellation import cancel, stop_by_worker
from orchestrator.services.claim_next import ClaimRequest, Finished, complete_and_claim, fail_and_claim
from orchestrator.services.claiming import Claimed, claim, claim_many
from orchestrator.services.concurrency import ConcurrencyGroup, OnConflict
from orchestrator.services.credentials import create_api_token, register_worker, revoke_api_token, rotate_webhook_secret
from orchestrator.services.deliveries import redeliver, redeliver_many, send_test
from orchestrator.services.dependency_propagation import propagate_pending, unblock
from orchestrator.services.expiry import exceeded_limit, expire, force_cancel, time_out
from orchestrator.services.exports import ensure_export_worker, record_audit_bundle
from orchestrator.services.finish import ArtifactRef, CompleteMessage, FailMessage, acknowledge_cancel, complete, fail
from orchestrator.services.hardware_specs import change_spec, create_spec, delete_spec
from orchestrator.services.heartbeat import HeartbeatResult, HeartbeatUpdate, acknowledge, release, renew, report
from orchestrator.services.housekeeping import start_housekeeping_task
from orchestrator.services.identity_keys import ensure_identity_key, rotate_identity_key
from orchestrator.services.incident_mode import begin_incident_mode, end_incident_mode, remove_expired_incident_mode
from orchestrator.services.incidents import acknowledge_incident, resolve_incident
from orchestrator.services.limits import (
    keep_shares,
    pause,
    remove_expired,
    resume,
    set_limit,
    set_pool_policy,
    set_project_limit,
    set_rate,
    sync_plan,
    throttle,
)
from orchestrator.services.logs import append_log
from orchestrator.services.notification_rules import (
    change_notification_rule,
    create_notification_rule,
    delete_notification_rule,
)
from orchestrator.services.operator_actions import revoke, revoke_leases_of, rotate_worker_token, set_worker_state
from orchestrator.services.packs import register_pack_version
from orchestrator.services.payload_schemas import remove_payload_schema, set_payload_schema
from orchestrator.services.personal_keys import create_personal_key, revoke_personal_key
from orchestrator.services.priority import prioritize, raise_queued_priority
from orchestrator.services.pruning import delete_finished_jobs, delete_log, delete_step_chunks
from orchestrator.services.quotas import set_quota
from orchestrator.services.replays import ReplayRequest, compare_replay, replay
from orchestrator.services.repositories import (
    add_repository,
    change_repository,
    delete_runs_of_repository,
    remove_repository,
)
from orchestrator.services.retries import RESEND, retry, reupload
from orchestrator.services.runners import (
    add_runner_spec,
    change_runner,
    create_runner,
    remove_runner_spec,
    rotate_runner_key,
)
from orchestrator.services.schedules import (
    change_schedule,
    create_schedule,
    delete_schedule,
    run_schedule,
    submit_due_job,
)
from orchestrator.services.secrets import (
    SecretSnapshot,
    delete_secret,
    delete_variable,
    set_secret,
    set_variable,
    snapshot_secrets,
)
from orchestrator.services.settlement import complete_late, give_up, settle
from orchestrator.services.step_logs import StepLogResult, append_step_log, close_step_log, flush_late_chunks
from orchestrator.services.steps import create_steps
from orchestrator.services.submission import Submission, submit
from orchestrator.services.tenants import claim_organization
from orchestrator.services.transitions import OperationResult
from orchestrator.services.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    rotate_webhook_key,
    webhook_secret,
)
from orchestrator.services.workflow_approval import approve_workflow_run
from orchestrator.services.workflow_pins import pin_workflow_run
from orchestrator.services.workflow_reruns import RerunRequest, RerunScope, require_ended_run, rerun_workflow
from orchestrator.services.workflow_runs import WorkflowRunOutcome, WorkflowRunRequest, start_workflow_run
from orchestrator.services.workflow_settlement import settle_pending_runs, settle_run

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
    "ReplayRequest",
    "RerunRequest",
    "RerunScope",
    "SecretSnapshot",
    "StepLogResult",
    "Submission",
    "WorkerHeartbeat",
    "WorkflowRunOutcome",
    "WorkflowRunRequest",
    "abandon_objects",
    "abort_bulk_action",
    "acknowledge",
    "acknowledge_cancel",
    "acknowledge_incident",
    "acknowledge_many",
    "add_artifact_piece",
    "add_repository",
    "add_runner_spec",
    "append_log",
    "append_step_log",
    "approve_workflow_run",
    "begin_artifact",
    "begin_cache_entry",
    "begin_incident_mode",
    "begin_lease_artifact",
    "cancel",
    "cancel_batch",
    "change_notification_rule",
    "change_repository",
    "change_runner",
    "change_schedule",
    "change_spec",
    "change_webhook",
    "claim",
    "claim_many",
    "claim_organization",
    "close_step_log",
    "compare_replay",
    "complete",
    "complete_and_claim",
    "complete_late",
    "complete_lease_artifact",
    "complete_many",
    "complete_upload",
    "create_api_token",
    "create_notification_rule",
    "create_personal_key",
    "create_runner",
    "create_schedule",
    "create_spec",
    "create_steps",
    "create_webhook",
    "delete_abandoned",
    "delete_finished_jobs",
    "delete_log",
    "delete_notification_rule",
    "delete_runs_of_repository",
    "delete_schedule",
    "delete_secret",
    "delete_spec",
    "delete_step_chunks",
    "delete_stored_object",
    "delete_variable",
    "delete_webhook",
    "end_incident_mode",
    "ensure_export_worker",
    "ensure_identity_key",
    "evaluate_breaker",
    "exceeded_limit",
    "expire",
    "fail",
    "fail_and_claim",
    "fail_many",
    "find_artifact_for_piece",
    "find_cache_entry",
    "find_received_artifact",
    "find_runner",
    "flush_late_chunks",
    "force_cancel",
    "give_up",
    "keep_shares",
    "pause",
    "pin_workflow_run",
    "prioritize",
    "propagate_pending",
    "raise_queued_priority",
    "record_audit_bundle",
    "record_bulk_progress",
    "redeliver",
    "redeliver_many",
    "register_pack_version",
    "register_runner",
    "register_worker",
    "release",
    "remove_expired",
    "remove_expired_incident_mode",
    "remove_payload_schema",
    "remove_repository",
    "remove_runner_spec",
    "renew",
    "renew_across_workers",
    "renew_many",
    "replay",
    "report",
    "require_ended_run",
    "rerun_batch",
    "rerun_workflow",
    "reset_breaker",
    "resolve_incident",
    "resume",
    "retry",
    "reupload",
    "revoke",
    "revoke_api_token",
    "revoke_leases_of",
    "revoke_personal_key",
    "revoke_registration_tokens",
    "revoke_runner",
    "rotate_identity_key",
    "rotate_registration_token",
    "rotate_runner_key",
    "rotate_webhook_key",
    "rotate_webhook_secret",
    "rotate_worker_token",
    "run_schedule",
    "send_test",
    "set_limit",
    "set_payload_schema",
    "set_pool_policy",
    "set_project_limit",
    "set_quota",
    "set_rate",
    "set_secret",
    "set_variable",
    "set_worker_state",
    "settle",
    "settle_pending_runs",
    "settle_run",
    "snapshot_secrets",
    "start_bulk_action",
    "start_housekeeping_task",
    "start_workflow_run",
    "stop_by_worker",
    "submit",
    "submit_batch",
    "submit_due_job",
    "submit_many",
    "sync_plan",
    "throttle",
    "time_out",
    "unblock",
    "webhook_secret",
]
