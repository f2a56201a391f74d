"""The iterations of a job of type `oci`: runs its image, keeps what it prints, and reads the files that it leaves."""

from __future__ import annotations

import json
import os
import signal
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
_MEASURES = "\0bencher"  # the name of the worker's own measurements among the files: no path has NUL

Execute = Callable[[RunSpec, "OutputCapture", "OutputCapture"], RunResult]


class OutputCapture:
    """The beginning of a stream."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_cut = False

    def take(self, data: bytes) -> None:
        fits = data[: MAX_OUTPUT_BYTES - len(self.data)]
        self.is_cut |= len(fits) < len(data)
        self.data += fits

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


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
    is_cut: bool = False

    def run(self) -> JobFailed | None:
        """Run the iterations. Returns why the job fails, or None. Raises JobFailed for an image without a command."""
        deadline = time.monotonic() + self.job.timeout_seconds
        argv = self._command()
        for _ in range(self.job.iterations):
            spec = RunSpec(**vars(self.first) | {"argv": argv, "timeout_seconds": deadline - time.monotonic()})
            if failure := self._iterate(spec):
                return failure
            if self.is_cut:
                break
        return None

    def output(self, failure: JobFailed | None) -> bytes:
        """Return what the server stores: the iterations as far as they fit, and why the job failed or they do not."""
        document: dict[str, Any] = {"results": self.iterations}
        if failure is not None:
            document["error"] = str(failure)
        encoded = json.dumps(document).encode()
        while len(encoded) > MAX_OUTPUT_BYTES and self.iterations:
            self.iterations.pop()
            self.is_cut = True
            encoded = json.dumps(document).encode()
        if not self.is_cut:
            return encoded
        cut = f"The output of the job has more than {MAX_OUTPUT_BYTES:,} bytes. Its end is missing."
        return json.dumps(document | {"error": str(failure) if failure else cut, "truncated": True}).encode()

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
            output, errors = OutputCapture(), OutputCapture()
            with self.root(directory) as root:
                environment = dict(self.config.environment) | self.job.environment
                run = {"root": root, "working_directory": directory, "environment": environment}
                began = time.monotonic()
                result = self.execute(RunSpec(**vars(spec) | run), output, errors)
                self._record(result, output, errors, root, time.monotonic() - began)
            self.is_cut |= output.is_cut or errors.is_cut
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
        iteration: dict[str, Any] = {"exit_code": _code_of(result)}
        iteration |= {name: found.text for name, found in (("stdout", output), ("stderr", errors)) if found.data}
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
        return found | ({_MEASURES: json.dumps(measures)} if measures else {})

    def _read(self, root: int, path: str) -> tuple[int | None, str | None]:
        """Return size and content of a regular file below the root; None, None without one."""
        file = open_file(root, path)
        if file is None:
            return None, None
        with file:
            size = os.fstat(file.fileno()).st_size
            if self.job.file_size:
                return size, None
            content = file.read(MAX_OUTPUT_BYTES + 1)
        self.is_cut |= len(content) > MAX_OUTPUT_BYTES
        return size, content[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")


def _code_of(result: RunResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    number = signal.Signals.__members__.get(result.signal or "")
    return 128 + (number or 0)
