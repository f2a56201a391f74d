"""Records one run: reads the trace while it comes, and makes the payload for ingest at the end."""

from __future__ import annotations

from typing import Any

from workers.agent.http.wire import JobPayload
from workers.agent.outcomes import JobFailed
from workers.engines.contract import Engine, RunResult, RunSpec
from workers.report.payload import encoded, sealed
from workers.report.report import RunReport


class RunRecorder:
    """Records one run. `feed` is called from the engine's thread, `payload` once, after it."""

    def __init__(self, worker_id: str, job: JobPayload, spec: RunSpec, engine: Engine) -> None:
        self._worker_id = worker_id
        assert job.source is not None  # noqa: S101 only jobs that have both have a run
        assert job.execution is not None  # noqa: S101 likewise
        self._job, self._source, self._execution = job, job.source, job.execution
        self._spec = spec
        self._report = RunReport(engine.mount_points(spec), expected=spec.egress.allow if spec.egress else ())

    def feed(self, lines: bytes) -> None:
        self._report.feed(lines)

    def payload(self, result: RunResult) -> tuple[bytes, dict[str, int]]:
        """Return the body for ingest, the same bytes for every attempt, and its counts."""
        body = self._report.payload(metadata=self._metadata(), result=result, spec=self._spec)
        return encoded(body), _numbers(body)

    def _metadata(self) -> dict[str, Any]:
        job, source = self._job, self._source
        return {
            "org_slug": job.org_slug,
            "project_slug": job.project_slug,
            "repo_url": source.repo_url,
            "git_commit": source.git_commit,
            "git_ref": source.ref,
            "pull_request_number": source.pull_request_number,
            "command": list(self._execution.command),
            "working_directory": self._execution.working_directory,
            "trigger_kind": job.trigger.kind,
            "trigger_actor": job.trigger.actor,
            "worker_id": self._worker_id,
            "job_id": job.job_id,
            "retry_of_job_id": job.retry_of,
        }


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
        return encoded(sealed({**kept, "metadata": metadata})), _numbers(run), run["outcome"]["exit_code"]
    except (KeyError, TypeError, AttributeError):
        raise JobFailed("upload_rejected", "The stored payload of the failed attempt is not a run.") from None


def _numbers(run: dict[str, Any]) -> dict[str, int]:
    return {name: number for name, number in run["counts"].items() if isinstance(number, int)}
