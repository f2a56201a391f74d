"""The verbs: the only way to change a job. One function a verb, one transaction each: lock, check, change, record."""

from orchestrator.lifecycle.by_client import Outcome, Submission, cancel, retry, submit
from orchestrator.lifecycle.by_clock import expire, force_cancel, overdue, time_out
from orchestrator.lifecycle.by_operator import revoke, revoke_leases_of, rotate_worker_token, set_worker_state
from orchestrator.lifecycle.by_worker import (
    Renewed,
    acknowledge,
    acknowledge_cancel,
    complete,
    fail,
    release,
    renew,
    report,
)
from orchestrator.lifecycle.claiming import Claimed, claim
from orchestrator.lifecycle.output import append_log

__all__ = [
    "Claimed",
    "Outcome",
    "Renewed",
    "Submission",
    "acknowledge",
    "acknowledge_cancel",
    "append_log",
    "cancel",
    "claim",
    "complete",
    "expire",
    "fail",
    "force_cancel",
    "overdue",
    "release",
    "renew",
    "report",
    "retry",
    "revoke",
    "revoke_leases_of",
    "rotate_worker_token",
    "set_worker_state",
    "submit",
    "time_out",
]
