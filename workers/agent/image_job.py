"""The iterations of a job of type `oci`: runs its image, keeps what it prints, and reads the files that it leaves."""

from __future__ import annotations

import bisect
import codecs
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from workers.agent.http.wire import OciPayload
from workers.agent.outcomes import JobFailed, check_outcome
from workers.engines.contract import ImageRoot, RunResult, RunSpec
from workers.engines.oci.documents import ImageConfig
from workers.engines.oci.inside import DIRECTORY, open_file

MAX_OUTPUT_BYTES = 3 << 20  # of all iterations, as they are sent: the server accepts 4 MiB by default
_ITERATION_BYTES = 128  # of an iteration without output
_FILE_BYTES = 8  # of a file, beyond its path and content
_MEASURES = "\0bencher"  # the name of the worker's own measurements among the files: no path has NUL

Execute = Callable[[RunSpec, "OutputCapture", "OutputCapture"], RunResult]


class OutputBudget:
    """The bytes that the output of a job may still have, as they are sent: so they also bound the worker's memory.

    Two streams take from it at once. Once something was cut, nothing more fits.
    """

    def __init__(self, size: int = MAX_OUTPUT_BYTES) -> None:
        self._left = size
        self._lock = threading.Lock()
        self.is_cut = False

    @property
    def left(self) -> int:
        return self._left

    def take(self, text: str) -> str:
        """Return the beginning of a text, as far as it fits."""
        with self._lock:
            cost = _encoded_size(text)
            if cost > self._left:
                fits = bisect.bisect_right(range(1, len(text)), self._left, key=lambda n: _encoded_size(text[:n]))
                self._left, self.is_cut = 0, True
                return text[:fits]
            self._left -= cost
            return text

    def takes(self, cost: int) -> bool:
        """Take so many bytes, or nothing. Returns whether they fit."""
        with self._lock:
            if cost > self._left:
                self._left, self.is_cut = 0, True
                return False
            self._left -= cost
            return True


def _encoded_size(text: str) -> int:
    return len(json.dumps(text)) - 2


class OutputCapture:
    """The beginning of a stream."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        self._keep(self._decoder.decode(data))

    def end(self) -> str:
        """Return the text of the stream, which has ended."""
        self._keep(self._decoder.decode(b"", final=True))
        return self._kept.decode()

    def _keep(self, text: str) -> None:
        self._kept += self._budget.take(text).encode()


@dataclass
class ImageJob:
    """The iterations of one job.

    `first` is the spec of an iteration without command and root, `root` mounts a new root for an iteration, and
    `execute` runs one, and raises what ends the whole job.
    """

    job: OciPayload
    config: ImageConfig
    first: RunSpec
    root: Callable[[str], AbstractContextManager[ImageRoot]]
    execute: Execute
    iterations: list[dict[str, Any]] = field(default_factory=list)
    budget: OutputBudget = field(default_factory=OutputBudget)

    def run(self) -> JobFailed | None:
        """Run the iterations. Returns why the job fails, or None. Raises JobFailed for an image without a command."""
        deadline = time.monotonic() + self.job.timeout_seconds
        argv = self._command()
        for _ in range(self.job.iterations):
            spec = RunSpec(**vars(self.first) | {"argv": argv, "timeout_seconds": deadline - time.monotonic()})
            if failure := self._iterate(spec):
                return failure
            if self.budget.is_cut:
                break
        return None

    def output(self, failure: JobFailed | None) -> bytes:
        """Return what the server stores: the iterations as far as they fit, and why the job failed or they do not."""
        document: dict[str, Any] = {"results": self.iterations}
        if failure is not None:
            document["error"] = str(failure)
        if self.budget.is_cut:
            cut = f"The output of the job has more than {MAX_OUTPUT_BYTES:,} bytes. Its end is missing."
            document = {"error": cut} | document | {"truncated": True}
        return json.dumps(document).encode()

    def _command(self) -> tuple[str, ...]:
        """Return the command as Docker does: another entrypoint drops the command of the image, too."""
        entrypoint, cmd = self.job.entrypoint, self.job.cmd
        if entrypoint is None:
            words = self.config.entrypoint + (self.config.cmd if cmd is None else cmd)
        else:
            words = entrypoint + (cmd or ())
        if not words:
            raise JobFailed("image_invalid", "The image names no command, and neither does the job.")
        return words

    def _iterate(self, spec: RunSpec) -> JobFailed | None:
        try:
            if spec.timeout_seconds <= 0:
                check_outcome(RunResult("timeout"), self._whole(spec))
            directory = self.config.working_directory
            directory = directory if directory.startswith("/") else f"/{directory}"
            output, errors = OutputCapture(self.budget), OutputCapture(self.budget)
            with self.root(directory) as root:
                environment = dict(self.config.environment) | self.job.environment
                run = {"root": root, "working_directory": directory, "environment": environment}
                began = time.monotonic()
                result = self.execute(RunSpec(**vars(spec) | run), output, errors)
                self._record(result, output, errors, root, time.monotonic() - began)
            check_outcome(result, self._whole(spec))
        except JobFailed as failure:
            return failure
        if result.exit_code or result.signal:
            how = f"with code {result.exit_code}" if result.signal is None else f"by {result.signal}"
            message = f"Iteration {len(self.iterations)} of {self.job.iterations} ended {how}."
            return None if self.job.allow_failure else JobFailed("command_failed", message, self.exit_code)
        return None

    def _whole(self, spec: RunSpec) -> RunSpec:
        return RunSpec(**vars(spec) | {"timeout_seconds": self.job.timeout_seconds})

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the last iteration; 128 and its number for a signal, as a shell does."""
        return self.iterations[-1]["exit_code"] if self.iterations else None

    def _record(
        self, result: RunResult, output: OutputCapture, errors: OutputCapture, root: ImageRoot, seconds: float
    ) -> None:
        self.budget.takes(_ITERATION_BYTES)
        iteration: dict[str, Any] = {"exit_code": _code_of(result)}
        texts = {"stdout": output.end(), "stderr": errors.end()}
        iteration |= {name: text for name, text in texts.items() if text}
        files = self._files(root, seconds)
        self.iterations.append(iteration | ({} if files is None else {"output": files}))

    def _files(self, root: ImageRoot, seconds: float) -> dict[str, str] | None:
        job = self.job
        if not (job.file_paths or job.build_time):
            return None
        found: dict[str, str] = {}
        measures: dict[str, Any] = {}
        if job.build_time:
            words = " ".join((*(job.entrypoint or ()), *(job.cmd or ()))) or " ".join(self._command())
            measures[words] = {"build-time": {"value": seconds}}
        descriptor = os.open(root.path, DIRECTORY)
        try:
            for path in job.file_paths:
                size, text = self._read(descriptor, path)
                if size is not None and job.file_size:
                    measures[path] = {"file-size": {"value": size}}
                elif text is not None:
                    found[path] = text
        finally:
            os.close(descriptor)
        if not measures or not self.budget.takes(_encoded_size(measured := json.dumps(measures))):
            return found
        return found | {_MEASURES: measured}

    def _read(self, root: int, path: str) -> tuple[int | None, str | None]:
        """Return size and content of a regular file below the root; None, None without one."""
        file = open_file(root, path)
        if file is None:
            return None, None
        with file:
            size = os.fstat(file.fileno()).st_size
            if self.job.file_size:
                return size, None
            if not self.budget.takes(_encoded_size(path) + _FILE_BYTES):
                return size, None
            content = file.read(self.budget.left + 1)  # no byte is shorter as it is sent
        return size, self.budget.take(content.decode("utf-8", "replace"))


def _code_of(result: RunResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    number = signal.Signals.__members__.get(result.signal or "")
    return 128 + (number or 0)
