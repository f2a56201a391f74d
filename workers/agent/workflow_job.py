"""Runs the steps of a workflow job: the server evaluates a step when it begins, the worker executes it.

A step leaves variables, paths and a summary for later steps in files of the job's home, as in GitHub Actions. What a
step has written there is read without following a link, and up to a limit.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from workers.agent.checkout import CheckoutFailed, open_directory
from workers.agent.http.client import encoded
from workers.agent.http.wire import StepPayload
from workers.agent.object_transfer import open_below
from workers.agent.outcomes import JobFailed, check_outcome
from workers.agent.sanitize import counted, one_line
from workers.engines.contract import MountPoints, RunResult, RunSpec

CHECKOUT = "actions/checkout@"
# No credentials are ever left in the workspace.
CHECKOUT_VALUES = ("fetch-depth", "persist-credentials")
FOLDER = ".workflow-{}"  # of the command files of a step, in the home of the job
MAX_FILE_BYTES = 256 << 10  # of each command file of a step
MAX_STATE_BYTES = 512 << 10  # of all that steps leave for later ones, as it is sent with each step: 1 MiB are read
MAX_VARIABLE_BYTES = 128 << 10  # of NAME=VALUE and a NUL: Linux starts no program with a longer one
MAX_PATH_BYTES = 64 << 10  # of all that steps put before PATH
MAX_MESSAGE_LENGTH = 1000
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a step must not set for later ones: what describes the run, and what a program loads code by.
RESERVED = re.compile(r"(GITHUB_|SHITHUB_|RUNNER_|ACTIONS_).*|CI|NODE_OPTIONS|LD_.*|BASH_ENV|ENV", re.DOTALL)
_HEREDOC = re.compile(r"([^=<]+)<<(.+)")

# Makes the command files and begins the script, in the sandbox: only there is the home of the job safe to write to.
_BEGIN = """mkdir -p "$4" || exit 125
for f in ENV OUTPUT PATH STEP_SUMMARY; do
  : > "$4/$f" || exit 125
  export "GITHUB_$f=$4/$f" "SHITHUB_$f=$4/$f"
done
[ -z "$2" ] || PATH=$2:$PATH
export PATH RUNNER_TEMP="$TMPDIR"
case $3 in
  python) exec python3 -c "$1" ;;
  bash) exec bash --noprofile --norc -e -o pipefail -c "$1" ;;
  sh) exec sh -e -c "$1" ;;
esac
if command -v bash >/dev/null; then exec bash -e -c "$1"; fi
exec sh -e -c "$1"
"""


class StepClient(Protocol):
    """The messages about the steps of a workflow job."""

    def begin_step(self, index: int, state: dict[str, Any]) -> StepPayload: ...

    def end_step(self, index: int, conclusion: str) -> None: ...


class WorkflowStepLog(Protocol):
    """The log of one step. `close` sends what is in it, before the step ends."""

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class CommandFileError(Exception):
    """A command file of a step cannot be read.

    The text says why, without a value that the step has written: the message of a failure is not masked.
    """


@dataclass
class LeftValues:
    """The values that steps have left for later ones."""

    env: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def require_limits(self) -> None:
        """Raise CommandFileError if a request or the environment of a program cannot hold these."""
        if len(":".join(self.paths).encode()) > MAX_PATH_BYTES:
            raise CommandFileError(f"The steps left more than {counted(MAX_PATH_BYTES, 'byte')} in GITHUB_PATH.")
        if len(encoded({"env": self.env, "steps": self.steps})) > MAX_STATE_BYTES:
            raise CommandFileError(f"The steps left more than {counted(MAX_STATE_BYTES, 'byte')} for later steps.")


@dataclass
class StepSequence:
    """The steps of one job.

    `first` is the spec of a step without its command, `inside` says where it sees its directories. `execute` runs a
    step, and raises what ends the whole job. `checkout` fetches the repository with the values of the action.
    """

    client: StepClient
    step_count: int
    first: RunSpec
    inside: MountPoints
    open_log: Callable[[int], WorkflowStepLog]
    execute: Callable[[int, RunSpec], RunResult]
    checkout: Callable[[Mapping[str, str]], None]
    progress: Callable[[dict[str, Any]], None]
    failure: JobFailed | None = None
    left: LeftValues = field(default_factory=LeftValues)

    def run(self) -> dict[str, Any]:
        """Run the steps. After a failed one those run whose condition asks for it; none after the time limit.

        Returns:
            The final result: `status`, `exit_code`; with `failed` also `reason` and `message`.
        """
        deadline = time.monotonic() + self.first.timeout_seconds
        for index in range(self.step_count):
            if time.monotonic() >= deadline:
                self.failure = self._timeout()
                break
            state = {"has_failed": self.failure is not None, "env": self.left.env, "steps": self.left.steps}
            order = self.client.begin_step(index, state)
            if order.step_id:
                self.left.steps[order.step_id] = {"outcome": "skipped", "conclusion": "skipped", "outputs": {}}
            if order.is_skipped:
                continue
            self.progress({"percent": 100 * index // self.step_count, "step_index": index})
            failure = self._step(index, order, deadline)
            timed_out = failure is not None and failure.reason == "timed_out"
            if order.step_id:
                has_failed = failure is not None and not order.continue_on_error
                self.left.steps[order.step_id] |= {
                    "outcome": "failure" if failure else "success",
                    "conclusion": "failure" if has_failed else "success",
                }
            self.client.end_step(index, "timed_out" if timed_out else "failure" if failure else "success")
            if failure is not None and (timed_out or not order.continue_on_error):
                self.failure = self.failure or failure
            if timed_out:
                self.failure = failure
                break
        if self.failure is None:
            return {"status": "succeeded", "exit_code": 0}
        code = {} if self.failure.exit_code is None else {"exit_code": self.failure.exit_code}
        return {"status": "failed", "reason": self.failure.reason, "message": str(self.failure), **code}

    def _step(self, index: int, order: StepPayload, deadline: float) -> JobFailed | None:
        """Execute one step. Returns why it failed, or None."""
        log = self.open_log(index)
        try:
            self._execute_order(index, order, log, deadline)
        except JobFailed as failure:
            message = one_line(f"{self._named(index)}: {failure}", MAX_MESSAGE_LENGTH)
            log.note(one_line(failure, MAX_MESSAGE_LENGTH))
            return JobFailed(failure.reason, message, failure.exit_code)
        finally:
            log.close()
        return None

    def _execute_order(self, index: int, order: StepPayload, log: WorkflowStepLog, deadline: float) -> None:
        if order.error:
            raise JobFailed("command_failed", order.error)
        if order.uses:
            self._use(order)
        else:
            self._run_script(index, order, log, deadline)

    def _use(self, order: StepPayload) -> None:
        if not order.uses.startswith(CHECKOUT):
            raise JobFailed("command_failed", f"Workers do not execute the action {one_line(order.uses, 100)}.")
        for name in order.with_values:
            if name not in CHECKOUT_VALUES:
                known = ", ".join(CHECKOUT_VALUES)
                raise JobFailed("checkout_failed", f"Checkout does not know {one_line(name, 40)}. It knows {known}.")
        self.checkout(order.with_values)

    def _run_script(self, index: int, order: StepPayload, log: WorkflowStepLog, deadline: float) -> None:
        try:
            with open_directory(self.first.workspace, order.working_directory):
                pass
        except CheckoutFailed:
            # It is not named: it may be an output of a step.
            raise JobFailed("command_failed", "The working directory is no directory in the workspace.") from None
        # A step before cannot guess it, so it has left nothing there.
        folder = FOLDER.format(secrets.token_hex(8))
        paths = ":".join(reversed(self.left.paths))
        spec = replace(
            self.first,
            argv=("sh", "-c", _BEGIN, "sh", order.run, paths, order.shell, f"{self.inside.home}/{folder}"),
            environment=self._described() | order.environment,
            working_directory=order.working_directory or ".",
            timeout_seconds=max(deadline - time.monotonic(), 0.001),
        )
        result = self.execute(index, spec)
        try:
            self._take_files(folder, order, log)
        except CommandFileError as error:
            raise JobFailed("command_failed", str(error)) from None
        finally:
            check_outcome(result, replace(spec, timeout_seconds=self.first.timeout_seconds))
            if result.kind != "exited" or result.exit_code != 0:
                how = f"with code {result.exit_code}" if result.signal is None else f"by {result.signal}"
                raise JobFailed("command_failed", f"The script ended {how}.", result.exit_code)

    def _described(self) -> dict[str, str]:
        """Return the variables that describe the machine."""
        workspace = self.inside.workspace
        return {
            "GITHUB_WORKSPACE": workspace,
            "SHITHUB_WORKSPACE": workspace,
            "RUNNER_OS": "Linux",
            "RUNNER_NAME": "runworker",
        }

    def _take_files(self, folder: str, order: StepPayload, log: WorkflowStepLog) -> None:
        """Read what the step has left.

        Raises:
            CommandFileError: A file is no regular file, too long or malformed, or all values are too many.
        """
        home = self.first.workspace.with_name(f"{self.first.workspace.name}.private") / "home"
        env = parse_assignments(read_command_file(home, folder, "ENV"), "GITHUB_ENV")
        for name in env:
            if RESERVED.fullmatch(name):
                raise CommandFileError(f"GITHUB_ENV: A step may not set {one_line(name, 40)}.")
        outputs = parse_assignments(read_command_file(home, folder, "OUTPUT"), "GITHUB_OUTPUT")
        paths = [line for line in read_command_file(home, folder, "PATH").splitlines() if line.strip()]
        if any("\0" in path for path in paths):
            raise CommandFileError("GITHUB_PATH: The file contains NUL.")
        if summary := read_command_file(home, folder, "STEP_SUMMARY").strip():
            log.note(f"summary\n{summary}\n")
        left = LeftValues(self.left.env | env, self.left.paths + paths, dict(self.left.steps))
        if order.step_id:
            left.steps[order.step_id] = left.steps[order.step_id] | {"outputs": outputs}
        left.require_limits()
        self.left = left

    def _timeout(self) -> JobFailed | None:
        try:
            check_outcome(RunResult("timeout"), replace(self.first, argv=("sh",)))
        except JobFailed as failure:
            return failure
        return None

    def _named(self, index: int) -> str:
        return f"Step {index + 1} of {self.step_count}"


def read_command_file(home: Path, folder: str, name: str) -> str:
    """Return the text of a command file, "" if the step has removed it or has not begun.

    Raises:
        CommandFileError: It is a link or no regular file, or has too many bytes, or is no UTF-8.
    """
    try:
        with open_below(home, f"{folder}/{name}") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError:
        raise CommandFileError(f"GITHUB_{name}: The step has replaced the file.") from None
    if len(content) > MAX_FILE_BYTES:
        raise CommandFileError(f"GITHUB_{name}: The file has more than {counted(MAX_FILE_BYTES, 'byte')}.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CommandFileError(f"GITHUB_{name}: The file is not UTF-8.") from None


def parse_assignments(text: str, file: str) -> dict[str, str]:
    """Return the values by name of lines `NAME=VALUE`, and of several lines after `NAME<<END` up to a line `END`.

    Raises:
        CommandFileError: A line is neither, an end is missing, a name is no identifier, or a value is no variable's.
    """
    found: dict[str, str] = {}
    lines = enumerate(text.split("\n"), 1)
    for number, line in lines:
        if not line.strip():
            continue
        if heredoc := _HEREDOC.fullmatch(line):
            name, end = heredoc[1], heredoc[2]
            inner: list[str] = []
            for _, inner_line in lines:
                if inner_line == end:
                    break
                inner.append(inner_line)
            else:
                raise CommandFileError(f"{file}: The end of the value that begins in line {number} is missing.")
            value = "\n".join(inner)
        else:
            name, separator, value = line.partition("=")
            if not separator:
                raise CommandFileError(f"{file}: Line {number} is neither NAME=VALUE nor NAME<<END.")
        if not VARIABLE.fullmatch(name) and not (file.endswith("OUTPUT") and re.fullmatch(r"[A-Za-z_][\w-]*", name)):
            raise CommandFileError(f"{file}: Line {number} begins with no name.")
        if "\0" in value:
            raise CommandFileError(f"{file}: The value of {one_line(name, 40)} contains NUL.")
        if len(f"{name}={value}\0".encode()) > MAX_VARIABLE_BYTES:
            limit = counted(MAX_VARIABLE_BYTES, "byte")
            raise CommandFileError(f"{file}: The value of {one_line(name, 40)} has {limit} or more.")
        found[name] = value
    return found
