"""The response to a claim as frozen values. Unknown members are ignored, wrong ones rejected."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workers.agent.errors import ProtocolError
from workers.engines.contract import Isolation, TraceLevel

T = TypeVar("T")
E = TypeVar("E", Isolation, TraceLevel)
IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")  # becomes part of a path and of file names
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REPOSITORY = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)  # owner and name
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RUNTIME, STEPS, PACK_RUN, ACTIONS, OCI = "runtime", "steps", "pack-run", "actions", "oci"
JOB_TYPES = (RUNTIME, STEPS, PACK_RUN, ACTIONS)  # what every worker claims
IMAGE_JOB_TYPES = (OCI,)  # what a worker claims that runs images
INPUT_VARIABLE = "INPUT_"  # begins the name of the environment variable of an input
# A lease may last two intervals only (pack runs): one lost answer to a heartbeat would end the job.
HEARTBEATS_PER_LEASE = 6
_REQUIRED: Any = object()


@dataclass(frozen=True)
class SourcePayload:
    """The repository and the commit."""

    repo_url: str
    git_commit: str
    ref: str | None
    pull_request_number: int | None


@dataclass(frozen=True)
class WorkPayload:
    """The limits and permissions of a job of any type."""

    working_directory: str
    timeout_seconds: float
    allow_network: bool
    allow_exec: bool
    least_isolation: Isolation
    egress: tuple[str, ...]
    trace: TraceLevel


@dataclass(frozen=True)
class ExecutionPayload(WorkPayload):
    """Type `runtime`: one command, with a run for ingest."""

    command: tuple[str, ...]


@dataclass(frozen=True)
class PatternPayload:
    """The artifacts that a job declares."""

    type: str
    path_glob: str


@dataclass(frozen=True)
class CachePayload:
    """Paths that the worker keeps for the next job with the same key."""

    type: str
    key: str
    paths: tuple[str, ...]
    read_only: bool


@dataclass(frozen=True)
class CacheDownload:
    """A cache entry that can be restored. `url` is a permission: it is in no message."""

    url: str = field(repr=False)
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True)
class StepsPayload(WorkPayload):
    """Types `steps` and `pack-run`: lines for the shell."""

    steps: tuple[str, ...]
    environment: dict[str, str]
    artifacts: tuple[PatternPayload, ...]
    caches: tuple[CachePayload, ...]
    image: str | None


@dataclass(frozen=True)
class WorkflowPayload(WorkPayload):
    """Type `actions`: a workflow job, whose steps the server hands out one by one."""

    job_key: str


@dataclass(frozen=True)
class StartedSteps:
    """The facts that a worker needs before the first step of a workflow job. `checkout_token` is in no message."""

    repository: str
    head_sha: str
    checkout_token: str = field(repr=False)
    step_count: int


@dataclass(frozen=True)
class StepPayload:
    """The evaluated texts of a step of a workflow job. `environment` and `with_values` may contain secrets."""

    is_skipped: bool
    error: str
    run: str
    uses: str
    with_values: dict[str, str] = field(repr=False)
    working_directory: str
    environment: dict[str, str] = field(repr=False)
    continue_on_error: bool
    step_id: str
    shell: str


@dataclass(frozen=True)
class OciPayload(WorkPayload):
    """Type `oci`: an image of the server's registry, run some times on a machine of these resources.

    `repository`, `digest` and `pull_token` are for the registry. `pull_token` is a permission: it is in no message.
    """

    repository: str
    digest: str
    pull_token: str = field(repr=False)
    entrypoint: tuple[str, ...] | None
    cmd: tuple[str, ...] | None
    environment: dict[str, str]
    file_paths: tuple[str, ...]
    build_time: bool
    file_size: bool
    iterations: int
    allow_failure: bool
    cpus: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class TriggerPayload:
    """The cause of the job."""

    kind: str
    actor: str | None


@dataclass(frozen=True)
class JobPayload:
    """A job."""

    job_id: str
    org_slug: str
    project_slug: str
    source: SourcePayload | None
    execution: ExecutionPayload | None
    steps: StepsPayload | None
    workflow: WorkflowPayload | None
    oci: OciPayload | None
    trigger: TriggerPayload
    retry_of: str | None
    unsent_run: dict[str, Any] | None = field(default=None, repr=False)  # upload this; execute nothing

    @property
    def work(self) -> WorkPayload:
        """Return the part for the type of the job."""
        found = self.execution or self.steps or self.workflow or self.oci
        assert found is not None  # noqa: S101 whoever read the claim has seen to it
        return found


@dataclass(frozen=True)
class LeasePayload:
    """The right to run one job. `lease_id` is a secret: it goes into requests and the spool, nowhere else."""

    lease_id: str = field(repr=False)
    job: JobPayload
    fence: int
    ttl_seconds: float
    heartbeat_interval_seconds: float
    acknowledge_within_seconds: float
    sent: dict[str, Any] = field(repr=False)  # as it came, for the spool


def lease(body: Any) -> LeasePayload:
    """Parse a lease. Raises ProtocolError, which names the member and never its value."""
    outer = _object(body, "answer")
    job = _object(outer.get("job"), "job")
    ttl_seconds = _seconds(job, "lease_ttl_seconds")
    return LeasePayload(
        lease_id=_identifier(outer, "lease_id"),
        job=_job(job),
        fence=_take(job, "fence", int),
        ttl_seconds=ttl_seconds,
        heartbeat_interval_seconds=min(_seconds(job, "heartbeat_interval_seconds"), ttl_seconds / HEARTBEATS_PER_LEASE),
        acknowledge_within_seconds=_seconds(job, "acknowledge_within_seconds"),
        sent=outer,
    )


def _job(job: dict[str, Any]) -> JobPayload:
    trigger = _object(job.get("trigger"), "trigger")
    kind = _take(job, "job_type", str, RUNTIME)
    if kind not in (*JOB_TYPES, *IMAGE_JOB_TYPES):
        raise ProtocolError("job_type")
    source = job.get("source")
    return JobPayload(
        job_id=_identifier(job, "job_id"),
        org_slug=_take(job, "org_slug", str),
        project_slug=_take(job, "project_slug", str),
        source=None if kind != RUNTIME and source is None else _source(_object(source, "source")),
        execution=_execution(_object(job.get("execution"), "execution")) if kind == RUNTIME else None,
        steps=_steps_of(kind, job),
        workflow=_workflow(_object(job.get("actions"), "actions")) if kind == ACTIONS else None,
        oci=_oci(_object(job.get("oci"), "oci")) if kind == OCI else None,
        trigger=TriggerPayload(_take(trigger, "kind", str), _take(trigger, "actor", str, None)),
        retry_of=_take(job, "retry_of", str, None),
        unsent_run=_take(job, "unsent_run", dict, None),
    )


def _steps_of(kind: str, job: dict[str, Any]) -> StepsPayload | None:
    if kind == STEPS:
        return _steps(_object(job.get("steps"), "steps"))
    if kind == PACK_RUN:
        return _pack(_object(job.get("request"), "request"))
    return None


def _source(source: dict[str, Any]) -> SourcePayload:
    commit = _take(source, "git_commit", str)
    if not COMMIT.fullmatch(commit):
        raise ProtocolError("git_commit")
    return SourcePayload(
        repo_url=_take(source, "repo_url", str),
        git_commit=commit,
        ref=_take(source, "ref", str, None),
        pull_request_number=_take(source, "pull_request_number", int, None),
    )


def _execution(execution: dict[str, Any]) -> ExecutionPayload:
    command = _strings(execution, "command", None)
    if not command:
        raise ProtocolError("command")
    return ExecutionPayload(
        command=command,
        allow_exec=_take(execution, "allow_exec", bool),
        **_terms(execution, trace=TraceLevel.FULL),
    )


def _steps(steps: dict[str, Any]) -> StepsPayload:
    lines = _strings(steps, "steps", None)
    if not lines:
        raise ProtocolError("steps")
    return StepsPayload(
        steps=lines,
        environment=_environment(_take(steps, "environment", dict, {})),
        artifacts=tuple(_pattern(_object(pattern, "artifacts")) for pattern in _take(steps, "artifacts", list, [])),
        caches=tuple(_cache(_object(cache, "caches")) for cache in _take(steps, "caches", list, [])),
        image=_take(steps, "image", str, None),
        allow_exec=True,
        **_terms(steps, trace=TraceLevel.NONE),
    )


def _pack(request: dict[str, Any]) -> StepsPayload:
    """Parse a pack run: the plan says what to execute, the request with which permissions and inputs."""
    plan = _object(request.get("plan"), "plan")
    environment = _take(plan, "environment", dict, {}) | _input_variables(_take(request, "inputs", dict, {}))
    permissions = ("allow_network", "egress", "least_isolation", "timeout_seconds", "trace")
    return _steps(plan | {name: request.get(name) for name in permissions} | {"environment": environment})


def _input_variables(inputs: dict[str, Any]) -> dict[str, str]:
    variables = {}
    for name, value in inputs.items():
        if not isinstance(value, str | int):
            raise ProtocolError("inputs")
        text = value if isinstance(value, str) else json.dumps(value)  # `true` and `7`, as in the request
        variables[INPUT_VARIABLE + name.upper().replace("-", "_")] = text
    return variables


def _workflow(workflow: dict[str, Any]) -> WorkflowPayload:
    return WorkflowPayload(
        job_key=_take(workflow, "job_key", str), allow_exec=True, **_terms(workflow, trace=TraceLevel.NONE)
    )


def started_steps(body: dict[str, Any]) -> StartedSteps:
    """Parse the response to the start of the steps of a workflow job."""
    commit, repository = _take(body, "head_sha", str), _take(body, "repository", str)
    if not COMMIT.fullmatch(commit):
        raise ProtocolError("head_sha")
    if not REPOSITORY.fullmatch(repository):
        raise ProtocolError("repository")
    return StartedSteps(repository, commit, _take(body, "checkout_token", str), _take(body, "step_count", int))


def step_order(body: dict[str, Any]) -> StepPayload:
    """Parse the response to the begin of a step of a workflow job."""
    return StepPayload(
        is_skipped=_take(body, "is_skipped", bool),
        error=_take(body, "error", str, ""),
        run=_take(body, "run", str, ""),
        uses=_take(body, "uses", str, ""),
        with_values=_environment_of(body, "with_values"),
        working_directory=_take(body, "working_directory", str, ""),
        environment=_variables(_take(body, "environment", dict, {})),
        continue_on_error=_take(body, "continue_on_error", bool, default=False),
        step_id=_take(body, "step_id", str, ""),
        shell=_take(body, "shell", str, ""),
    )


def _environment_of(body: dict[str, Any], name: str) -> dict[str, str]:
    found: dict[str, Any] = _take(body, name, dict, {})
    if not all(isinstance(value, str) for value in found.values()):
        raise ProtocolError(name)
    return found


def _oci(oci: dict[str, Any]) -> OciPayload:
    config, machine = _object(oci.get("config"), "config"), _object(oci.get("machine"), "machine")
    repository, digest = _take(config, "project", str), _take(config, "digest", str)
    if not IDENTIFIER.fullmatch(repository):
        raise ProtocolError("project")
    if not DIGEST.fullmatch(digest):
        raise ProtocolError("digest")
    work = oci | {"timeout_seconds": config.get("timeout"), "allow_network": machine.get("network")}
    return OciPayload(
        repository=repository,
        digest=digest,
        pull_token=_take(oci, "pull_token", str),
        entrypoint=_words(config, "entrypoint"),
        cmd=_words(config, "cmd"),
        environment=_variables(_take(config, "env", dict, {})),
        file_paths=_strings(config, "file_paths", []),
        build_time=_take(config, "build_time", bool, default=False),
        file_size=_take(config, "file_size", bool, default=False),
        iterations=_take(config, "iter", int, 1),
        allow_failure=_take(config, "allow_failure", bool, default=False),
        cpus=_take(machine, "cpu", int),
        memory_bytes=_take(machine, "memory", int),
        disk_bytes=_take(machine, "disk", int),
        allow_exec=True,
        **_terms(work, trace=TraceLevel.NONE),
    )


def _words(members: dict[str, Any], name: str) -> tuple[str, ...] | None:
    return None if members.get(name) is None else _strings(members, name, None)


def _variables(named: dict[str, Any]) -> dict[str, str]:
    """Return variables of any names that a process can have."""
    for name, value in named.items():
        if not name or "=" in name or not isinstance(value, str) or "\0" in name + value:
            raise ProtocolError("env")
    return named


def _terms(work: dict[str, Any], *, trace: TraceLevel) -> dict[str, Any]:
    """Parse what all types have. `trace`: the level where the server names none."""
    return {
        "working_directory": _take(work, "working_directory", str, "."),
        "timeout_seconds": _seconds(work, "timeout_seconds"),
        "allow_network": _take(work, "allow_network", bool),
        # A level that this worker does not know must not be mistaken for a weak one.
        "least_isolation": _level(work, "least_isolation", Isolation.NAMESPACES),
        "egress": _strings(work, "egress", []),
        "trace": _level(work, "trace", trace),
    }


def _environment(named: dict[str, Any]) -> dict[str, str]:
    for name, value in named.items():
        if not VARIABLE.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise ProtocolError("environment")
    return named


def _pattern(pattern: dict[str, Any]) -> PatternPayload:
    return PatternPayload(_take(pattern, "type", str), _take(pattern, "path_glob", str))


def _cache(cache: dict[str, Any]) -> CachePayload:
    return CachePayload(
        type=_take(cache, "type", str),
        key=_take(cache, "key", str),
        paths=_strings(cache, "paths", None),
        read_only=_take(cache, "read_only", bool, default=False),
    )


def cache_download(body: dict[str, Any]) -> CacheDownload | None:
    """Parse the response to a restore. Returns None if there is no entry."""
    url = _take(body, "download_url", str, None)
    if url is None:
        return None
    size = _take(body, "size_bytes", int)
    if size < 0:
        raise ProtocolError("size_bytes")
    return CacheDownload(url, size, _take(body, "sha256", str, None))


def _level(work: dict[str, Any], name: str, default: E) -> E:
    try:
        return type(default)(_take(work, name, str, default.value))
    except ValueError:
        raise ProtocolError(name) from None


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(name)
    return value


def _take(members: dict[str, Any], name: str, kind: type[T], default: Any = _REQUIRED) -> T:
    value = members.get(name)
    if value is None and default is not _REQUIRED:
        return default
    # In Python a bool is an int; on the wire it is not.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(name)
    return value


def _identifier(members: dict[str, Any], name: str) -> str:
    value = _take(members, name, str)
    if not IDENTIFIER.fullmatch(value):
        raise ProtocolError(name)
    return value


def _seconds(members: dict[str, Any], name: str) -> float:
    value = members.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        raise ProtocolError(name)
    return float(value)


def _strings(members: dict[str, Any], name: str, default: list[str] | None) -> tuple[str, ...]:
    value = members.get(name, default)
    if value is None and default is not None:
        value = default
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise ProtocolError(name)
    return tuple(value)
