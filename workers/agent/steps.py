"""The steps of one job: each a line for the shell, in order, in one workspace, until one fails or all are done."""

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

SHOWN = 200  # characters of a line, in progress and messages


@dataclass
class StepTracker:
    """`first` is the order of the first step but for its line; `execute` runs one, and lets through what breaks off the
    whole job."""

    steps: StepsPayload
    first: RunSpec
    execute: Callable[[int, RunSpec], RunResult]
    done: list[dict[str, Any]] = field(default_factory=list)
    printed: int = 0

    def follow(self) -> dict[str, Any]:
        """Run the steps and return what is told at the end: `status`, `exit_code`, `steps`; with `failed` also `reason`
        and `message`."""
        until = time.monotonic() + self.steps.timeout_seconds
        for index, line in enumerate(self.steps.steps):
            order = self._order(line, until)
            ended = self.execute(index, order)
            self._note(index, ended)
            if failure := self._failure(index, ended, order):
                return self._told("failed", failure.exit_code, reason=failure.reason, message=str(failure))
        return self._told("succeeded", 0)

    def progress(self, index: int) -> dict[str, Any]:
        """Where the job is as this step begins, for heartbeats."""
        line = one_line(self.steps.steps[index], SHOWN)
        return {"percent": 100 * index // len(self.steps.steps), "current_step": line, "step_index": index}

    def _order(self, line: str, until: float) -> RunSpec:
        limits = self.first.limits
        left = max(limits.output_bytes - self.printed, 0)
        return replace(
            self.first,
            argv=("sh", "-c", line),
            timeout_seconds=max(until - time.monotonic(), 0.001),
            limits=replace(limits, output_bytes=left),
        )

    def _note(self, index: int, ended: RunResult) -> None:
        self.printed += ended.output_bytes
        times = {"started_at": _moment(ended.started_at), "finished_at": _moment(ended.finished_at)}
        self.done.append({"index": index, "exit_code": ended.exit_code, **times})

    def _failure(self, index: int, ended: RunResult, order: RunSpec) -> JobFailed | None:
        """Why the job ends with this step, or None. Raises Stopped."""
        try:
            check_outcome(ended, replace(order, timeout_seconds=self.steps.timeout_seconds))
        except JobFailed as failure:
            return failure
        if ended.kind == "exited" and ended.exit_code == 0:
            return None
        how = f"with code {ended.exit_code}" if ended.signal is None else f"by {ended.signal}"
        step = f"Step {index + 1} of {len(self.steps.steps)} ended {how}: "
        line = one_line(self.steps.steps[index], SHOWN)
        return JobFailed("command_failed", step + line, ended.exit_code)

    def _told(self, status: str, exit_code: int | None, **more: str) -> dict[str, Any]:
        code = {} if exit_code is None else {"exit_code": exit_code}
        return {"status": status, **code, "steps": self.done, **more}


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat()
