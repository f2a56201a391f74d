"""The verbs: the only way to change a job. One function a verb, one transaction each: lock, check, change, record."""

from orchestrator.lifecycle.batches import BatchOutcome, Origin, Planned, cancel_batch, rerun_batch, submit_batch
from orchestrator.lifecycle.breaking import attend_breaker, reset_breaker
from orchestrator.lifecycle.bulk import BulkOutcome, submit_many
from orchestrator.lifecycle.by_client import Submission, retry, submit
from orchestrator.lifecycle.by_clock import expire, force_cancel, overdue, time_out
from orchestrator.lifecycle.by_operator import revoke, revoke_leases_of, rotate_worker_token, set_worker_state
from orchestrator.lifecycle.by_worker import Beat, Renewed, acknowledge, release, renew, report
from orchestrator.lifecycle.cancelling import cancel
from orchestrator.lifecycle.claiming import Claimed, claim, claim_many
from orchestrator.lifecycle.finals import Failure, Success, acknowledge_cancel, complete, fail
from orchestrator.lifecycle.for_many import acknowledge_many, complete_many, fail_many, renew_many
from orchestrator.lifecycle.grouping import Group, WhenBusy
from orchestrator.lifecycle.left_behind import Reference
from orchestrator.lifecycle.lifting import lift_waiting, prioritize
from orchestrator.lifecycle.limiting import keep_plan, keep_shares, set_limit, set_pool_policy, set_rate
from orchestrator.lifecycle.outcome import Outcome
from orchestrator.lifecycle.output import append_log
from orchestrator.lifecycle.pausing import lift_what_is_over, pause, resume, throttle
from orchestrator.lifecycle.pruning import delete_finished_jobs, delete_log
from orchestrator.lifecycle.registering import (
    create_api_token,
    register_worker,
    revoke_api_token,
    rotate_webhook_secret,
)
from orchestrator.lifecycle.resending import RESEND, resend
from orchestrator.lifecycle.unblocking import follow_ends, unblock

__all__ = [
    "RESEND",
    "BatchOutcome",
    "Beat",
    "BulkOutcome",
    "Claimed",
    "Failure",
    "Group",
    "Origin",
    "Outcome",
    "Planned",
    "Reference",
    "Renewed",
    "Submission",
    "Success",
    "WhenBusy",
    "acknowledge",
    "acknowledge_cancel",
    "acknowledge_many",
    "append_log",
    "attend_breaker",
    "cancel",
    "cancel_batch",
    "claim",
    "claim_many",
    "complete",
    "complete_many",
    "create_api_token",
    "delete_finished_jobs",
    "delete_log",
    "expire",
    "fail",
    "fail_many",
    "follow_ends",
    "force_cancel",
    "keep_plan",
    "keep_shares",
    "lift_waiting",
    "lift_what_is_over",
    "overdue",
    "pause",
    "prioritize",
    "register_worker",
    "release",
    "renew",
    "renew_many",
    "report",
    "rerun_batch",
    "resend",
    "reset_breaker",
    "resume",
    "retry",
    "revoke",
    "revoke_api_token",
    "revoke_leases_of",
    "rotate_webhook_secret",
    "rotate_worker_token",
    "set_limit",
    "set_pool_policy",
    "set_rate",
    "set_worker_state",
    "submit",
    "submit_batch",
    "submit_many",
    "throttle",
    "time_out",
    "unblock",
]
