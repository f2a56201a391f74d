"""Reads workflow files: `Workflow` with its triggers, jobs and steps, or diagnostics with path and line.

Every unknown key is an error: a misspelled `if` would otherwise run a job that was meant to be skipped.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from runtime_jobs.workflows.diagnostics import Diagnostic, Diagnostics, item_path, member_path, quoted
from runtime_jobs.workflows.document import (
    DEFAULT_PULL_REQUEST_TYPES,
    DispatchInput,
    DispatchTrigger,
    PullRequestTrigger,
    PushTrigger,
    Workflow,
    WorkflowConcurrency,
    WorkflowJob,
    WorkflowPermissions,
    WorkflowStep,
    WorkflowTriggers,
)
from runtime_jobs.workflows.expressions import (
    GROUP_SCOPE,
    JOB_CONDITION_SCOPE,
    RUNNER_SCOPE,
    SERVER_SCOPE,
    STEP_CONDITION_SCOPE,
    STEP_SCOPE,
    Expression,
    ExpressionError,
    ExpressionScope,
    is_for_own_workers,
    parse_expression,
    references,
    validate_names,
)
from runtime_jobs.workflows.patterns import MAX_PATTERN, MAX_PATTERNS, PatternList
from runtime_jobs.workflows.schedules import CronSchedule, ScheduleError
from runtime_jobs.workflows.templates import (
    condition_source,
    parse_condition,
    template_expressions,
    use_canonical_names,
    use_canonical_names_in_condition,
    uses_alias,
)
from runtime_jobs.workflows.unsupported import RUNS_ON, command_warnings, unsupported_key, uses_command_files
from runtime_jobs.workflows.yaml_nodes import (
    UnreadableYamlError,
    YamlMapping,
    YamlNode,
    YamlScalar,
    YamlSequence,
    compose,
)

MAX_JOBS = 64
MAX_STEPS = 256  # of one job
MAX_NAME = 256  # characters
MAX_KEY = 100
MAX_WORKING_DIRECTORY = 1_024
MAX_SCHEDULES = 20
MAX_INPUTS = 25
MAX_TIMEOUT_MINUTES = 4_320
RESERVED_VARIABLES = "SHITHUB_INPUT_"  # a runner refuses variables that begin so

ACTIONS = (
    "actions/checkout@v4",
    "shithub/upload-artifact@v1",
    "shithub/download-artifact@v1",
    "actions/setup-python@v5",
)
# The runner of document 003 executes this one. All others fail there; later runners know more of them.
_ACTION_OF_ALL_RUNNERS = ACTIONS[0]
_CHECKOUT = re.compile(
    r"actions/checkout@[A-Za-z0-9_./-]{1,200}"
)  # any version: workers of this project have their own
CHECKOUT_VALUES = ("fetch-depth", "persist-credentials")  # no credentials are left in the workspace in any case
SHELLS = ("bash", "sh", "python")
_PERMISSION_MODES = ("read-all", "write-all", "none")
_PERMISSION_LEVELS = ("none", "read", "write")
_INPUT_TYPES = ("string", "boolean", "choice", "environment")

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LABEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_ACTIVITY = re.compile(r"[a-z_]{1,50}")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class ParsedWorkflow:
    """The result of reading a workflow file.

    Attributes:
        workflow: The workflow, or None if a diagnostic is an error.
        diagnostics: What is wrong, in the order of the lines.
    """

    workflow: Workflow | None
    diagnostics: tuple[Diagnostic, ...]


def parse_workflow(content: bytes) -> ParsedWorkflow:
    """Read a workflow file. Time and memory are bounded whatever the bytes are.

    Args:
        content: The bytes of the file.
    """
    diagnostics = Diagnostics()
    workflow = None
    try:
        root = compose(content, diagnostics)
    except UnreadableYamlError as error:
        diagnostics.error(error.path, error.line, error.message)
    else:
        workflow = _WorkflowReader(diagnostics).read(root)
    return ParsedWorkflow(None if diagnostics.has_errors else workflow, diagnostics.in_order())


@dataclass(frozen=True)
class _Member:
    """The value of a key: its node, its path and the line of the key."""

    node: YamlNode
    path: str
    line: int


_NOTHING: dict[str, _Member] = {}


class _WorkflowReader:
    """Reads nodes. Each method reports what is wrong and returns a value with which reading continues."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._env: dict[str, str] = {}  # of the workflow
        self._defaults: dict[str, str] = {}  # of `run` steps: those of the workflow, then of the job
        self._needs_own_worker = False  # what was read of the job cannot be executed by other runners

    def read(self, root: YamlNode) -> Workflow | None:
        """Return the workflow of the root node. It is complete only if there was no error."""
        members = self._members(
            _Member(root, "", root.line), ("name", "on", "permissions", "env", "defaults", "concurrency", "jobs")
        )
        if members is None:
            return None
        for key in ("on", "jobs"):
            if key not in members:
                self._diagnostics.error(key, root.line, f"The key {key} is missing. A workflow needs it.")
        self._env = self._variables(members.get("env"))
        self._defaults = self._run_defaults(members.get("defaults"), {})
        return Workflow(
            name=self._name(members.get("name")),
            triggers=self._triggers(members["on"]) if "on" in members else WorkflowTriggers(),
            permissions=self._permissions(members.get("permissions")) or WorkflowPermissions(),
            env=self._env,
            concurrency=self._concurrency(members.get("concurrency")),
            jobs=self._jobs(members["jobs"]) if "jobs" in members else (),
        )

    # Values of any key.

    def _error(self, member: _Member, message: str) -> None:
        self._diagnostics.error(member.path, member.line, message)

    def _warn(self, member: _Member, message: str) -> None:
        self._diagnostics.warning(member.path, member.line, message)

    def _members(self, member: _Member, keys: tuple[str, ...]) -> dict[str, _Member] | None:
        """Return the members of a mapping with these keys only, or None if it is no mapping."""
        mapping = self._mapping(member)
        if mapping is None:
            return None
        for key, unknown in mapping.items():
            if key not in keys:
                self._error(unknown, f"{unsupported_key(key)} The keys here are: {', '.join(keys)}.")
        return mapping

    def _mapping(self, member: _Member) -> dict[str, _Member] | None:
        if not isinstance(member.node, YamlMapping):
            self._error(member, "A mapping of keys to values is needed here.")
            return None
        return {
            key: _Member(node, member_path(member.path, key), name.line)
            for key, (name, node) in member.node.entries.items()
        }

    def _items(self, member: _Member) -> list[_Member] | None:
        if not isinstance(member.node, YamlSequence):
            self._error(member, "A list is needed here.")
            return None
        return [_Member(node, item_path(member.path, index), node.line) for index, node in enumerate(member.node.items)]

    def _text(self, member: _Member | None, *, limit: int | None = None) -> str:
        if member is None:
            return ""
        if not isinstance(member.node, YamlScalar):
            self._error(member, "A text is needed here.")
            return ""
        text = "" if member.node.is_null else member.node.text
        if limit is not None and len(text) > limit:
            self._error(member, f"The text has {len(text)} characters. At most {limit} are allowed.")
        return text

    def _name(self, member: _Member | None) -> str:
        name = self._text(member, limit=MAX_NAME)
        if member is not None and "${{" in name:
            self._warn(member, "Names are displayed as they are written: expressions in them are not evaluated.")
        return name

    def _boolean(self, member: _Member | None) -> bool:
        if member is None:
            return False
        value = member.node.boolean if isinstance(member.node, YamlScalar) else None
        if value is None:
            self._error(member, "The value must be true or false.")
        return bool(value)

    def _texts(self, member: _Member | None) -> list[tuple[str, _Member]]:
        """Return one text or a list of texts."""
        if member is None:
            return []
        if isinstance(member.node, YamlScalar):
            return [(self._text(member), member)]
        found = [(self._text(item), item) for item in self._items(member) or []]
        return [(text, item) for text, item in found if isinstance(item.node, YamlScalar)]

    # Expressions.

    def _template(self, member: _Member | None, scope: ExpressionScope, *, limit: int | None = None) -> str:
        """Return a text with expressions, in which `shithub` replaces `github`."""
        text = self._text(member, limit=limit)
        if member is None or "${{" not in text:
            return text
        expressions = self._expressions(member, lambda: template_expressions(text))
        if not self._are_valid(member, expressions, scope):
            return text
        return use_canonical_names(text)

    def _condition(self, member: _Member | None, scope: ExpressionScope) -> str:
        text = self._text(member)
        if member is None or not isinstance(member.node, YamlScalar):
            return ""
        if not text.strip():
            self._error(member, "The condition is empty. Remove the key, or add an expression.")
            return ""
        expressions = self._expressions(member, lambda: [e for e in [parse_condition(text)] if e is not None])
        if not expressions or not self._are_valid(member, expressions, scope):
            return ""
        return use_canonical_names_in_condition(condition_source(text)).strip()

    def _expressions(self, member: _Member, parse: Callable[[], list[Expression]]) -> list[Expression] | None:
        try:
            return parse()
        except ExpressionError as error:
            self._error(member, str(error))
            return None

    def _are_valid(self, member: _Member, expressions: list[Expression] | None, scope: ExpressionScope) -> bool:
        if expressions is None:
            return False
        errors = [error for expression in expressions for error in validate_names(expression, scope)]
        for error in errors:
            self._error(member, error)
        if "steps" in scope.contexts or scope is RUNNER_SCOPE:
            self._needs_own_worker |= any(map(is_for_own_workers, expressions))
        if any(uses_alias(expression) for expression in expressions):
            self._warn(member, "Use shithub instead of github in expressions.")
        return not errors

    def _variables(self, member: _Member | None, *, scope: ExpressionScope = RUNNER_SCOPE) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in self._mapping_or_nothing(member).items():
            if not VARIABLE.fullmatch(name) or len(name) > MAX_KEY or name.startswith(RESERVED_VARIABLES):
                message = f"letters, digits and '_', not beginning with a digit or with {RESERVED_VARIABLES}"
                self._error(value, f"The name of a variable has {message}, and at most {MAX_KEY} characters.")
            values[name] = self._template(value, scope)
        return values

    def _mapping_or_nothing(self, member: _Member | None) -> Mapping[str, _Member]:
        return _NOTHING if member is None or _is_null(member) else self._mapping(member) or _NOTHING

    # Triggers.

    def _triggers(self, member: _Member) -> WorkflowTriggers:
        readers = {"push": self._push, "pull_request": self._pull_request, "workflow_dispatch": self._dispatch}
        if isinstance(member.node, YamlMapping):
            events = self._members(member, ("push", "pull_request", "schedule", "workflow_dispatch")) or {}
        else:
            events = dict(self._event_names(member))
        read = {name: reader(events[name]) for name, reader in readers.items() if name in events}
        if isinstance(member.node, YamlMapping | YamlSequence) and member.node.node_count == 1:
            self._error(member, "A workflow needs at least one event.")
        schedules = self._schedules(events["schedule"]) if "schedule" in events else ()
        return WorkflowTriggers(
            push=read.get("push"),  # type: ignore[arg-type] # each reader returns the type of its event
            pull_request=read.get("pull_request"),  # type: ignore[arg-type]
            schedules=schedules,
            dispatch=read.get("workflow_dispatch"),  # type: ignore[arg-type]
        )

    def _event_names(self, member: _Member) -> Iterator[tuple[str, _Member]]:
        """Yield the events of a word or a list. They have no settings."""
        for name, item in self._texts(member):
            if name == "schedule":
                self._error(item, "The event schedule needs a mapping: `schedule: [{cron: …}]`.")
            elif name not in {"push", "pull_request", "workflow_dispatch"}:
                self._error(
                    item, f"The event {quoted(name)} is unknown. There are: push, pull_request, workflow_dispatch."
                )
            else:
                yield name, _Member(YamlScalar(item.line, "", is_plain=True), item.path, item.line)

    def _settings(self, member: _Member, keys: tuple[str, ...]) -> dict[str, _Member]:
        return {} if _is_null(member) else self._members(member, keys) or {}

    def _push(self, member: _Member) -> PushTrigger:
        settings = self._settings(member, ("branches", "tags", "paths"))
        return PushTrigger(*(self._patterns(settings.get(key)) for key in ("branches", "tags", "paths")))

    def _pull_request(self, member: _Member) -> PullRequestTrigger:
        settings = self._settings(member, ("types", "branches", "paths"))
        types = self._texts(settings.get("types"))
        for name, item in types:
            if not _ACTIVITY.fullmatch(name):
                self._error(item, f"{quoted(name)} is no type of activity, such as opened or synchronize.")
        return PullRequestTrigger(
            tuple(name for name, _ in types) or DEFAULT_PULL_REQUEST_TYPES,
            self._patterns(settings.get("branches")),
            self._patterns(settings.get("paths")),
        )

    def _patterns(self, member: _Member | None) -> PatternList:
        patterns = self._texts(member)
        if member is not None and len(patterns) > MAX_PATTERNS:
            self._error(member, f"There are {len(patterns)} patterns. At most {MAX_PATTERNS} are allowed.")
            return PatternList()
        for pattern, item in patterns:
            if not pattern.removeprefix("!") or len(pattern) > MAX_PATTERN:
                self._error(item, f"A pattern has 1 to {MAX_PATTERN} characters, after an optional '!'.")
        return PatternList(tuple(pattern for pattern, _ in patterns))

    def _schedules(self, member: _Member) -> tuple[CronSchedule, ...]:
        found: dict[str, CronSchedule] = {}
        items = self._items(member)
        if items is not None and not 1 <= len(items) <= MAX_SCHEDULES:
            self._error(member, f"There are {len(items)} schedules. 1 to {MAX_SCHEDULES} are allowed.")
            return ()
        for item in items or ():
            members = self._members(item, ("cron",)) or {}
            if "cron" not in members:
                self._error(item, "The key cron is missing. A schedule needs it.")
                continue
            try:
                schedule = CronSchedule.parse(self._text(members["cron"]))
            except ScheduleError as error:
                self._error(members["cron"], str(error))
            else:
                found[schedule.source] = schedule
        return tuple(found.values())

    def _dispatch(self, member: _Member) -> DispatchTrigger:
        inputs = self._mapping_or_nothing(self._settings(member, ("inputs",)).get("inputs"))
        if len(inputs) > MAX_INPUTS:
            self._error(member, f"There are {len(inputs)} inputs. At most {MAX_INPUTS} are allowed.")
            return DispatchTrigger()
        return DispatchTrigger(tuple(self._input(name, value) for name, value in inputs.items()))

    def _input(self, name: str, member: _Member) -> DispatchInput:
        if not _IDENTIFIER.fullmatch(name) or len(name) > MAX_KEY:
            self._error(member, f"The name of an input is an identifier of at most {MAX_KEY} characters.")
        members = self._settings(member, ("description", "type", "default", "required", "options"))
        kind = self._text(members.get("type")) or "string"
        default = self._text(members["default"]) if "default" in members else None
        options = tuple(option for option, _ in self._texts(members.get("options")))
        if kind not in _INPUT_TYPES:
            self._error(members["type"], f"The type {quoted(kind)} is unknown. There are: {', '.join(_INPUT_TYPES)}.")
        if (kind == "choice") is not bool(options):
            self._error(member, "An input has options if, and only if, its type is choice.")
        if default and options and default not in options:
            self._error(members["default"], "The default is not one of the options.")
        if default and kind == "boolean" and default not in {"true", "false"}:
            self._error(members["default"], "The default of a boolean is true or false.")
        return DispatchInput(
            name,
            kind,
            default,
            self._boolean(members.get("required")),
            options,
            self._text(members.get("description")),
        )

    # Other keys of workflows and jobs.

    def _permissions(self, member: _Member | None) -> WorkflowPermissions | None:
        if member is None:
            return None
        if isinstance(member.node, YamlScalar):
            mode = self._text(member)
            if mode not in _PERMISSION_MODES:
                self._error(member, f"The permissions are one of {', '.join(_PERMISSION_MODES)}, or a mapping.")
            return WorkflowPermissions(mode)
        levels = {}
        for name, value in self._mapping_or_nothing(member).items():
            levels[name] = self._text(value)
            if levels[name] not in _PERMISSION_LEVELS or len(name) > MAX_KEY:
                self._error(value, f"The level of a permission is one of {', '.join(_PERMISSION_LEVELS)}.")
        return WorkflowPermissions(levels=levels)

    def _concurrency(self, member: _Member | None) -> WorkflowConcurrency | None:
        if member is None:
            return None
        if isinstance(member.node, YamlScalar):
            return WorkflowConcurrency(self._group(member))
        members = self._members(member, ("group", "cancel-in-progress"))
        if members is None:
            return None
        if "group" not in members:
            self._error(member, "The key group is missing. A concurrency mapping needs it.")
            return None
        return WorkflowConcurrency(self._group(members["group"]), self._boolean(members.get("cancel-in-progress")))

    def _group(self, member: _Member) -> str:
        group = self._template(member, GROUP_SCOPE, limit=MAX_NAME)
        if not group.strip():
            self._error(member, "The group is empty. Remove the key, or name a group.")
        return group

    # Jobs and steps.

    def _jobs(self, member: _Member) -> tuple[WorkflowJob, ...]:
        mapping = self._mapping(member)
        if mapping is None:
            return ()
        if not 1 <= len(mapping) <= MAX_JOBS:
            self._error(member, f"There are {len(mapping)} jobs. 1 to {MAX_JOBS} are allowed.")
            return ()
        jobs = tuple(job for key, value in mapping.items() if (job := self._job(key, value, mapping)) is not None)
        needs = {job.key: job.needs for job in jobs}
        for key in circular(needs):
            self._error(mapping[key], "The job needs itself, perhaps by way of others. Remove one of these needs.")
        return jobs

    def _job(self, key: str, member: _Member, others: Mapping[str, _Member]) -> WorkflowJob | None:
        if not _IDENTIFIER.fullmatch(key) or len(key) > MAX_KEY:
            self._error(member, f"The key of a job is an identifier of at most {MAX_KEY} characters.")
        keys = ("name", "runs-on", "needs", "if", "timeout-minutes", "permissions", "env", "defaults", "steps")
        members = self._members(member, keys)
        if members is None:
            return None
        of_file = self._defaults, self._needs_own_worker
        try:
            return self._read_job(key, member, members, others)
        finally:
            self._defaults, self._needs_own_worker = of_file

    def _read_job(
        self, key: str, member: _Member, members: dict[str, _Member], others: Mapping[str, _Member]
    ) -> WorkflowJob:
        self._defaults = self._run_defaults(members.get("defaults"), self._defaults)
        for needed in ("runs-on", "steps"):
            if needed not in members:
                self._error(member, f"The key {needed} is missing. A job needs it.")
        env = self._variables(members.get("env"))
        condition = self._condition(members.get("if"), JOB_CONDITION_SCOPE)
        if condition:
            self._require_no_secret(members["if"], condition, {**self._env, **env})
        return WorkflowJob(
            key=key,
            line=member.line,
            name=self._name(members.get("name")),
            runs_on=self._runs_on(members.get("runs-on")),
            needs=self._needs(members.get("needs"), others),
            condition=condition,
            timeout_minutes=self._timeout(members.get("timeout-minutes")),
            permissions=self._permissions(members.get("permissions")),
            env=env,
            steps=self._steps(members["steps"]) if "steps" in members else (),
            needs_own_worker=self._needs_own_worker,
        )

    def _run_defaults(self, member: _Member | None, outer: dict[str, str]) -> dict[str, str]:
        """Return `shell` and `working-directory` of steps that name none."""
        members = self._settings(member, ("run",)) if member is not None else {}
        run = self._settings(members["run"], ("shell", "working-directory")) if "run" in members else {}
        found = {"shell": self._shell(run.get("shell"))} if "shell" in run else {}
        if "working-directory" in run:
            found["working-directory"] = self._working_directory(run["working-directory"])
        return outer | found

    def _shell(self, member: _Member | None) -> str:
        shell = self._text(member)
        if member is not None and shell not in SHELLS:
            self._error(member, f"The shell is one of {', '.join(SHELLS)}. Start another one in the script.")
        return shell

    def _require_no_secret(self, member: _Member, condition: str, env: Mapping[str, str]) -> None:
        """Refuse the `if` of a job that refers to a variable with a secret: secrets are read for claims only."""
        for reference in references(parse_expression(condition)):
            if reference.path[0] == "env" and _names_secret(env.get(reference.path[1], "")):
                self._error(member, f"{reference} depends on a secret, which the condition of a job cannot use.")

    def _runs_on(self, member: _Member | None) -> str:
        if member is None:
            return ""
        if isinstance(member.node, YamlSequence):
            self._error(member, "Only one label is supported here. Write it as a text.")
            return ""
        label = self._text(member)
        if "${{" in label:
            self._error(member, RUNS_ON)
        elif not LABEL.fullmatch(label):
            self._error(member, "A label has 1 to 100 of the characters A-Z, a-z, 0-9, '_', '.' and '-'.")
        return label

    def _needs(self, member: _Member | None, others: Mapping[str, _Member]) -> tuple[str, ...]:
        needs = self._texts(member)
        for key, item in needs:
            if key not in others:
                self._error(item, f"There is no job {quoted(key)}.")
        return tuple(dict.fromkeys(key for key, _ in needs if key in others))

    def _timeout(self, member: _Member | None) -> int | None:
        if member is None:
            return None
        text = self._text(member)
        if not _WHOLE_NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_TIMEOUT_MINUTES:
            self._error(member, f"The timeout is a whole number of minutes from 1 to {MAX_TIMEOUT_MINUTES}.")
            return None
        return int(text)

    def _steps(self, member: _Member) -> tuple[WorkflowStep, ...]:
        items = self._items(member)
        if items is None:
            return ()
        if not 1 <= len(items) <= MAX_STEPS:
            self._error(member, f"There are {len(items)} steps. 1 to {MAX_STEPS} are allowed.")
            return ()
        ids: dict[str, str] = {}
        return tuple(step for item in items if (step := self._step(item, ids)) is not None)

    def _step(self, member: _Member, ids: dict[str, str]) -> WorkflowStep | None:
        keys = ("id", "name", "if", "run", "uses", "with", "shell", "working-directory", "env", "continue-on-error")
        members = self._members(member, keys)
        if members is None:
            return None
        uses = self._uses(members.get("uses"))
        if ("run" in members) is ("uses" in members):
            self._error(member, "A step has either run or uses.")
        elif "run" in members and not self._text(members["run"]).strip():
            self._error(members["run"], "The script is empty.")
        script = self._text(members["run"]) if "run" in members else ""
        for warning in command_warnings(script):
            self._warn(members["run"], warning)
        defaults = self._defaults if "run" in members else {}
        shell = self._shell(members["shell"]) if "shell" in members else defaults.get("shell", "")
        folder = self._working_directory(members.get("working-directory")) or defaults.get("working-directory", "")
        if shell == "python" and "${{" in script:
            self._error(
                members["run"], "A script in Python has no expressions. Write them in env, and read os.environ."
            )
        self._needs_own_worker |= bool(shell) or uses_command_files(script)
        if "with" in members and "uses" not in members:
            self._warn(members["with"], "Values of with have no effect in a step without uses.")
        return WorkflowStep(
            step_id=self._step_id(members.get("id"), ids),
            name=self._name(members.get("name")),
            condition=self._condition(members.get("if"), STEP_CONDITION_SCOPE),
            run=self._template(members.get("run"), STEP_SCOPE),
            uses=uses,
            working_directory=folder,
            env=self._variables(members.get("env"), scope=STEP_SCOPE),
            with_values=self._with(members.get("with"), uses),
            continue_on_error=self._boolean(members.get("continue-on-error")),
            shell=shell,
        )

    def _step_id(self, member: _Member | None, ids: dict[str, str]) -> str:
        if member is None:
            return ""
        step_id = self._text(member)
        if not _IDENTIFIER.fullmatch(step_id) or len(step_id) > MAX_KEY:
            self._error(member, f"The id of a step is an identifier of at most {MAX_KEY} characters.")
        elif step_id in ids:
            self._error(member, f"Another step of the job has this id: {ids[step_id]}.")
        ids.setdefault(step_id, member.path)
        return step_id

    def _uses(self, member: _Member | None) -> str:
        if member is None:
            return ""
        uses = self._text(member)
        if _CHECKOUT.fullmatch(uses):
            self._needs_own_worker |= uses != _ACTION_OF_ALL_RUNNERS
        elif uses not in ACTIONS:
            self._error(member, f"{quoted(uses)} is not supported. There are: {', '.join(ACTIONS)}.")
        elif uses != _ACTION_OF_ALL_RUNNERS:
            self._warn(member, f"Runners of the first generation fail a step that uses {uses}.")
        return uses

    def _with(self, member: _Member | None, uses: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in self._mapping_or_nothing(member).items():
            if not _IDENTIFIER.fullmatch(name) or len(name) > MAX_KEY:
                self._error(value, f"The name of a value is an identifier of at most {MAX_KEY} characters.")
            elif _CHECKOUT.fullmatch(uses) and uses != _ACTION_OF_ALL_RUNNERS and name not in CHECKOUT_VALUES:
                self._error(value, f"Checkout has the values {', '.join(CHECKOUT_VALUES)}.")
            elif uses == _ACTION_OF_ALL_RUNNERS and name != "fetch-depth":
                self._warn(value, "Runners of the first generation fail a checkout with values other than fetch-depth.")
            values[name] = self._template(value, SERVER_SCOPE)
        return values

    def _working_directory(self, member: _Member | None) -> str:
        folder = self._template(member, SERVER_SCOPE, limit=MAX_WORKING_DIRECTORY)
        if member is not None and (folder.startswith("/") or ".." in folder.split("/")):
            self._error(member, "The folder must be relative and stay inside the workspace.")
        return folder


def _names_secret(text: str) -> bool:
    try:
        found = [reference for part in template_expressions(text) for reference in references(part)]
    except ExpressionError:  # reported where the variable is
        return False
    return any(reference.path[0] == "secrets" for reference in found)


def _is_null(member: _Member) -> bool:
    return isinstance(member.node, YamlScalar) and member.node.is_null


def circular(needs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the keys of the jobs that need themselves, perhaps by way of others, in order."""
    waiting = {key: set(needed) & needs.keys() for key, needed in needs.items()}
    while ready := [key for key, needed in waiting.items() if not needed]:
        for key in ready:
            del waiting[key]
        for needed in waiting.values():
            needed.difference_update(ready)
    return [key for key in needs if key in waiting and _needs_itself(key, needs)]


def _needs_itself(key: str, needs: Mapping[str, tuple[str, ...]]) -> bool:
    seen: set[str] = set()
    queue = list(needs[key])
    while queue:
        needed = queue.pop()
        if needed == key:
            return True
        if needed not in seen:
            seen.add(needed)
            queue += needs.get(needed, ())
    return False
