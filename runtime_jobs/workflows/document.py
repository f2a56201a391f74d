"""A parsed workflow file: triggers, jobs and steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_jobs.workflows.patterns import PatternList
from runtime_jobs.workflows.schedules import CronSchedule

WORKFLOW_FOLDER = ".shithub/workflows"
WORKFLOW_SUFFIXES = (".yml", ".yaml")
# The types of `pull_request` without `types`.
DEFAULT_PULL_REQUEST_TYPES = ("opened", "synchronize", "reopened")


@dataclass(frozen=True)
class PushTrigger:
    """`on.push`. An empty list filters nothing."""

    branches: PatternList = field(default_factory=PatternList)
    tags: PatternList = field(default_factory=PatternList)
    paths: PatternList = field(default_factory=PatternList)


@dataclass(frozen=True)
class PullRequestTrigger:
    """`on.pull_request`. `branches` filters the base branch."""

    types: tuple[str, ...] = DEFAULT_PULL_REQUEST_TYPES
    branches: PatternList = field(default_factory=PatternList)
    paths: PatternList = field(default_factory=PatternList)


@dataclass(frozen=True)
class DispatchInput:
    """An input of `on.workflow_dispatch`.

    Attributes:
        name: The name under `shithub.event.inputs`.
        type: `string`, `boolean`, `choice` or `environment`.
        default: The value if the caller gives none, or None.
        is_required: The caller must give a value.
        options: The values of a `choice`.
        description: A text for people.
    """

    name: str
    type: str = "string"
    default: str | None = None
    is_required: bool = False
    options: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class DispatchTrigger:
    """`on.workflow_dispatch`."""

    inputs: tuple[DispatchInput, ...] = ()


@dataclass(frozen=True)
class WorkflowTriggers:
    """The events that start runs of a workflow. None: the event starts none."""

    push: PushTrigger | None = None
    pull_request: PullRequestTrigger | None = None
    schedules: tuple[CronSchedule, ...] = ()
    dispatch: DispatchTrigger | None = None

    def __bool__(self) -> bool:
        return bool(self.push or self.pull_request or self.schedules or self.dispatch)


@dataclass(frozen=True)
class WorkflowPermissions:
    """Permissions of a workflow or job.

    Attributes:
        mode: `read-all`, `write-all`, `none`, or empty.
        levels: `none`, `read` or `write` by the name of a permission.
    """

    mode: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the members of document 003: `mode` and `per`, each only if it has a value."""
        members: dict[str, Any] = {"mode": self.mode} if self.mode else {}
        return members | ({"per": dict(self.levels)} if self.levels else {})


@dataclass(frozen=True)
class WorkflowStep:
    """A step: a script, or a reference to an action. Its texts contain unevaluated expressions."""

    step_id: str = ""
    name: str = ""
    condition: str = ""
    run: str = ""
    uses: str = ""
    working_directory: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    with_values: Mapping[str, str] = field(default_factory=dict)
    continue_on_error: bool = False
    shell: str = ""


@dataclass(frozen=True)
class WorkflowJob:
    """A job of a workflow.

    Attributes:
        key: The key under `jobs`.
        name: The displayed name, or empty for the key.
        runs_on: The label that a runner must have.
        needs: The keys of the jobs that it waits for.
        condition: The `if`, or empty.
        timeout_minutes: The requested limit, or None for the default.
        permissions: The permissions of the job, or None for those of the workflow.
        env: Variables, without those of the workflow.
        steps: At least one step.
        line: The line of the key.
        needs_own_worker: A runner of another project cannot execute the job.
    """

    key: str
    runs_on: str
    steps: tuple[WorkflowStep, ...]
    name: str = ""
    needs: tuple[str, ...] = ()
    condition: str = ""
    timeout_minutes: int | None = None
    permissions: WorkflowPermissions | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 1
    needs_own_worker: bool = False


@dataclass(frozen=True)
class WorkflowConcurrency:
    """The group of a workflow's runs, with unevaluated expressions, and what a new run does to older ones."""

    group: str
    cancel_in_progress: bool = False


@dataclass(frozen=True)
class Workflow:
    """A workflow file without errors."""

    triggers: WorkflowTriggers
    jobs: tuple[WorkflowJob, ...]
    name: str = ""
    permissions: WorkflowPermissions = field(default_factory=WorkflowPermissions)
    env: Mapping[str, str] = field(default_factory=dict)
    concurrency: WorkflowConcurrency | None = None

    def env_of(self, job: WorkflowJob) -> dict[str, str]:
        """Return the variables of a job: those of the workflow, replaced by its own."""
        return {**self.env, **job.env}

    def permissions_of(self, job: WorkflowJob) -> WorkflowPermissions:
        return self.permissions if job.permissions is None else job.permissions


def is_workflow_file(path: str) -> bool:
    """Return whether a path of a repository is that of a workflow file."""
    folder, _, name = path.rpartition("/")
    return folder == WORKFLOW_FOLDER and name.endswith(WORKFLOW_SUFFIXES) and name not in WORKFLOW_SUFFIXES
