"""Type `actions`: one job of a workflow run, executed by a runner of document 003 step by step."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from runtime_jobs.models.jobs import Job
from runtime_jobs.specs.source import digest_of
from runtime_jobs.states import (
    FINAL_STATES,
    LEASED_STATES,
    CancelReason,
    Conclusion,
    FailureReason,
    JobState,
    StepStatus,
)

ACTIONS = "actions"
STATUS, CONCLUSION = "status", "conclusion"  # members of the result: the words of the runner

MAX_LABEL_BYTES = 100
LABEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")
DEFAULT_TIMEOUT_MINUTES = 360
MAX_TIMEOUT_MINUTES = 4320
OWN_WORKER = "own:workflow-steps"  # a requirement that each worker of this project meets, and no label equals
_REQUIREMENT_LENGTH = 63  # of the column
_HASHED = "sha256:"  # labels have no colon, so none equals a hashed one


@dataclass(frozen=True)
class ActionsStep:
    """One step of a workflow job. Exactly one of `run` and `uses` is not empty. Texts may contain expressions.

    Attributes:
        index: The position within the job, from 0.
        step_id: The `id` of the step in the workflow file, or empty.
        name: The name for people, or empty.
        condition: The `if` of the step, or empty.
        run: A script for the shell.
        uses: The name of a built-in action.
        working_directory: Relative to the workspace, or empty.
        env: Environment variables.
        with_: The parameters of the action.
        continue_on_error: Whether the job continues after a failure of the step.
        shell: `bash`, `sh`, `python`, or empty for that of the runner.
    """

    index: int
    step_id: str = ""
    name: str = ""
    condition: str = ""
    run: str = ""
    uses: str = ""
    working_directory: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    with_: Mapping[str, str] = field(default_factory=dict)
    continue_on_error: bool = False
    shell: str = ""


@dataclass(frozen=True)
class ActionsSpec:
    """A workflow job as its file describes it. Texts may contain expressions.

    Attributes:
        job_key: The key of the job in the workflow file.
        job_name: The name for people.
        runs_on: The label that a runner must have. Empty: any runner.
        needs: The keys of the jobs of the same run that come first.
        condition: The `if` of the job, or empty.
        timeout_minutes: The time limit of the job, 1 to `MAX_TIMEOUT_MINUTES`.
        permissions: `{}` or `{"mode": ..., "per": {name: level}}`.
        env: Environment variables of all steps.
        steps: The steps in order.
        needs_own_worker: Only workers of this project can execute the job.
    """

    job_key: str
    job_name: str
    steps: tuple[ActionsStep, ...]
    runs_on: str = ""
    needs: tuple[str, ...] = ()
    condition: str = ""
    timeout_minutes: int = DEFAULT_TIMEOUT_MINUTES
    permissions: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    needs_own_worker: bool = False

    job_type = ACTIONS
    source = None  # a repository of this server, which the workflow run names
    least_isolation = None
    trace = None

    @property
    def timeout_seconds(self) -> int:
        """The time limit of the job in seconds."""
        return self.timeout_minutes * 60

    @property
    def requirements(self) -> list[str]:
        """The label that a runner must have, as a requirement, and whether it must be a worker of this project."""
        label = [label_requirement(self.runs_on)] if self.runs_on else []
        return label + ([OWN_WORKER] if self.needs_own_worker else [])

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical execution request."""
        return digest_of(vars(self))

    def columns(self) -> dict[str, Any]:
        return {
            "job_type": ACTIONS,
            "timeout_seconds": self.timeout_seconds,
            "spec": _as_json(self),
            "requirements": self.requirements,
            "payload_digest": self.digest,
        }


def _as_json(spec: ActionsSpec) -> dict[str, Any]:
    members = dict(vars(spec))
    members["needs"] = list(spec.needs)
    members["permissions"], members["env"] = dict(spec.permissions), dict(spec.env)
    members["steps"] = [vars(step) | {"env": dict(step.env), "with_": dict(step.with_)} for step in spec.steps]
    return members


def label_requirement(label: str) -> str:
    """Return the requirement of a job that needs this label, and what a runner with the label offers.

    A label may be longer than a requirement. Such a label counts by its hash.
    """
    if len(label) <= _REQUIREMENT_LENGTH:
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()
    return f"{_HASHED}{digest}"[:_REQUIREMENT_LENGTH]


def actions_from_job(job: Job) -> ActionsSpec:
    """Return the specification that the columns of a job contain."""
    steps = tuple(ActionsStep(**step) for step in job.spec["steps"])
    return ActionsSpec(**job.spec | {"needs": tuple(job.spec["needs"]), "steps": steps})


def serialize_actions(job: Job) -> dict[str, Any]:
    """Return the specification under the names of workflow files."""
    steps = [_renamed(step, {"condition": "if", "with_": "with"}) for step in job.spec["steps"]]
    return _renamed(job.spec, {"condition": "if"}) | {"steps": steps}


def _renamed(members: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in members.items()}


def serialize_actions_for_lease(job: Job, confined: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a lease. `confined`: minimum isolation, egress and trace.

    The texts of the steps are evaluated when they begin. A job reaches the hosts that its organization permits.
    """
    members = {"job_key": job.spec["job_key"], "timeout_seconds": job.timeout_seconds}
    return {"source": None, "actions": members | confined | {"allow_network": bool(confined["egress"])}}


def configured_actions() -> dict[str, int]:
    """Return the rules of this installation for `actions` jobs: no automatic retry, and leases as runners need them.

    A runner sends no message between the claim and the preparation of the job, and polls every two seconds after it.
    A claim whose answer was lost is queued again after `ACTIONS_LEASE_SECONDS`.
    """
    seconds = settings.ACTIONS_LEASE_SECONDS
    return {
        "lease_ttl_seconds": seconds,
        "acknowledge_within_seconds": seconds,
        "heartbeat_interval_seconds": max(1, seconds // 3),
        "automatic_retries": 0,
    }


def reported_status_of(job: Job) -> StepStatus:
    """Return the status of a workflow job. A job that a runner has claimed is running."""
    if job.state in LEASED_STATES:
        return StepStatus.RUNNING
    if job.state not in FINAL_STATES:
        return StepStatus.QUEUED
    if is_skipped(job):
        return StepStatus.SKIPPED
    stored = _reported(job).get(STATUS)
    if stored is not None:
        return StepStatus(stored)
    return StepStatus.CANCELLED if job.state == JobState.CANCELED else StepStatus.COMPLETED


def conclusion_of(job: Job) -> Conclusion | None:
    """Return the conclusion of a workflow job, or None while it has not ended.

    The word of the runner is stored in the result. A job that the server has ended has the conclusion of its cause.
    """
    if job.state not in FINAL_STATES:
        return None
    stored = _reported(job).get(CONCLUSION)
    if stored is not None:
        return Conclusion(stored)
    if job.state == JobState.SUCCEEDED:
        return Conclusion.SUCCESS
    if job.state == JobState.FAILED:
        timed_out = job.failure_reason == FailureReason.TIMED_OUT
        return Conclusion.TIMED_OUT if timed_out else Conclusion.FAILURE
    return Conclusion.SKIPPED if is_skipped(job) else Conclusion.CANCELLED


def _reported(job: Job) -> dict[str, Any]:
    """Return the words of the runner, if the job ended as the runner reported it.

    A job whose cancel was requested ends as canceled, also if its runner reports a failure.
    """
    words = job.result or {}
    was_stopped = CONCLUSION in words and (
        words[STATUS] == StepStatus.CANCELLED or words[CONCLUSION] == Conclusion.CANCELLED
    )
    return words if was_stopped == (job.state == JobState.CANCELED) else {}


def is_skipped(job: Job) -> bool:
    """Return whether a workflow job was skipped: its `if` is false, or a job that it needs did not succeed."""
    reasons = (CancelReason.CONDITION_FALSE, CancelReason.DEPENDENCY_FAILED)
    return job.state == JobState.CANCELED and job.cancel_reason in reasons
