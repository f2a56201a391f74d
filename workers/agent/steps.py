"""The steps of one job: shell lines, run in order in one workspace, until one fails or all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from workers.agent.http.wire import StepsPayload
from workers.agent.outcomes import JobFailed, check_outcome
from workers.agent.sanitize import one_line
from workers.engines.contract import RunResult, RunSpec

MAX_LINE_LENGTH = 200  # characters of a step, in progress and messages


@dataclass
class StepTracker:
    """Runs the steps and records their results.

    `first` is the spec of the first step without its line. `execute` runs one step, and raises what ends the whole job.
    """

    steps: StepsPayload
    first: RunSpec
    execute: Callable[[int, RunSpec], RunResult]
    done: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Run the steps. When the time is up no further step begins: a short one would decide the job's result.

        Returns:
            The final result: `status`, `exit_code`, `steps`; with `failed` also `reason` and `message`.
        """
        deadline = time.monotonic() + self.steps.timeout_seconds
        for index, line in enumerate(self.steps.steps):
            spec = self._spec(line, deadline)
            failure = self._failure(index, RunResult("timeout"), spec) if spec.timeout_seconds <= 0 else None
            if failure is None:
                result = self.execute(index, spec)
                self._record(index, result)
                failure = self._failure(index, result, spec)
            if failure is not None:
                return self._final("failed", failure.exit_code, reason=failure.reason, message=str(failure))
        return self._final("succeeded", 0)

    def progress(self, index: int) -> dict[str, Any]:
        """Return the progress as this step begins, for heartbeats."""
        line = one_line(self.steps.steps[index], MAX_LINE_LENGTH)
        return {"percent": 100 * index // len(self.steps.steps), "current_step": line, "step_index": index}

    def _spec(self, line: str, deadline: float) -> RunSpec:
        return replace(self.first, argv=("sh", "-c", line), timeout_seconds=deadline - time.monotonic())

    def _record(self, index: int, result: RunResult) -> None:
        self.done.append(step_result(index, result))

    def _failure(self, index: int, result: RunResult, spec: RunSpec) -> JobFailed | None:
        """Return the failure that ends the job with this step, or None. Raises JobStopped."""
        try:
            check_outcome(result, replace(spec, timeout_seconds=self.steps.timeout_seconds))
        except JobFailed as failure:
            return failure
        if result.kind == "exited" and result.exit_code == 0:
            return None
        how = f"with code {result.exit_code}" if result.signal is None else f"by {result.signal}"
        step = f"Step {index + 1} of {len(self.steps.steps)} ended {how}: "
        line = one_line(self.steps.steps[index], MAX_LINE_LENGTH)
        return JobFailed("command_failed", step + line, result.exit_code)

    def _final(self, status: str, exit_code: int | None, **more: str) -> dict[str, Any]:
        code = {} if exit_code is None else {"exit_code": exit_code}
        return {"status": status, **code, "steps": self.done, **more}


def step_result(index: int, result: RunResult) -> dict[str, Any]:
    """Return the result of one step as the server displays it."""
    times = {"started_at": _isoformat(result.started_at), "finished_at": _isoformat(result.finished_at)}
    return {"index": index, "exit_code": result.exit_code, **times}


def _isoformat(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat()
