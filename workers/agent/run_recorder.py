"""Records one run: reads the trace while it comes, and makes the payload for ingest at the end."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from workers.agent.http.wire import JobPayload
from workers.agent.outcomes import JobFailed
from workers.engines.contract import RunResult, RunSpec
from workers.report.formatting import clean
from workers.report.payload import encoded, sealed
from workers.report.trace_reader import TraceReader, TraceReaderFailed

logger = logging.getLogger(__name__)

# Of each of at most 64 steps, the worst first. All are in one message of at most 1 MiB, where JSON needs twelve bytes
# for some characters.
MAX_STEP_FINDINGS = 5
MAX_STEP_DETAIL = 120


class RunRecorder:
    """Records one run. `feed` is called from the engine's thread, `payload` once, after it. Both raise JobFailed."""

    def __init__(self, worker_id: str, job: JobPayload, spec: RunSpec, reader: TraceReader) -> None:
        self._worker_id, self._job, self._spec = worker_id, job, spec
        self._reader = reader

    def feed(self, lines: bytes) -> None:
        with _failing_the_job():
            self._reader.feed(lines)

    def payload(self, result: RunResult) -> tuple[bytes, dict[str, int]]:
        """Return the body for ingest, the same bytes for every attempt, and its counts."""
        with _failing_the_job():
            body, counts = self._reader.payload(metadata=self._metadata(), result=result, spec=self._spec)
        return body, _numbers(counts)

    def summary(self, result: RunResult) -> dict[str, Any]:
        """Return what the result of a job says about the trace of one of its steps."""
        with _failing_the_job():
            body, counts = self._reader.payload(metadata={}, result=result, spec=self._spec)
        run = json.loads(body)
        findings = [
            {"detail": clean(item["detail"], MAX_STEP_DETAIL)}
            | {name: item[name] for name in ("rule", "severity", "count")}
            for item in run["suspicious_activity"]["items"][:MAX_STEP_FINDINGS]
        ]
        return {
            **{name: run["trace"][name] for name in ("level", "bytes", "truncated")},
            "counts": _numbers(counts),
            "findings": findings,
        }

    def _metadata(self) -> dict[str, Any]:
        job, source, execution = self._job, self._job.source, self._job.execution
        assert source is not None  # noqa: S101 only jobs that have both have a run
        assert execution is not None  # noqa: S101 likewise
        return {
            "org_slug": job.org_slug,
            "project_slug": job.project_slug,
            "repo_url": source.repo_url,
            "git_commit": source.git_commit,
            "git_ref": source.ref,
            "pull_request_number": source.pull_request_number,
            "command": list(execution.command),
            "working_directory": execution.working_directory,
            "trigger_kind": job.trigger.kind,
            "trigger_actor": job.trigger.actor,
            "worker_id": self._worker_id,
            "job_id": job.job_id,
            "retry_of_job_id": job.retry_of,
        }


@contextlib.contextmanager
def _failing_the_job() -> Iterator[None]:
    """Without the process that reads the trace there is no report, and without a report a run has no result."""
    try:
        yield
    except TraceReaderFailed as error:
        logger.error("trace reader failed error=%r", str(error))  # noqa: TRY400  # its own traceback is on stderr
        raise JobFailed("worker_error", "The process that read the trace of the command has failed.") from error


def rewrite_run_for_retry(
    run: dict[str, Any], job: JobPayload, worker_id: str
) -> tuple[bytes, dict[str, int], int | None]:
    """Return the run of an earlier attempt under the ids of this one: body for ingest, counts, exit code.

    Raises:
        JobFailed: The document is no run (`upload_rejected`).
    """
    try:
        metadata = {**run["metadata"], "job_id": job.job_id, "worker_id": worker_id, "retry_of_job_id": job.retry_of}
        kept = {name: value for name, value in run.items() if name != "payload_sha256"}
        return encoded(sealed({**kept, "metadata": metadata})), _numbers(run["counts"]), run["outcome"]["exit_code"]
    except (KeyError, TypeError, AttributeError):
        raise JobFailed("upload_rejected", "The stored payload of the failed attempt is not a run.") from None


def _numbers(counts: dict[str, Any]) -> dict[str, int]:
    return {name: number for name, number in counts.items() if isinstance(number, int)}
