"""Runs one job, from the acknowledgement of its lease to the final message to the server."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from workers.agent import artifacts
from workers.agent.active_leases import ActiveLease, boottime
from workers.agent.artifact_upload import ArtifactUploader
from workers.agent.caches import JobCaches
from workers.agent.checkout import CheckoutFailed, CheckoutStopped, open_directory
from workers.agent.context import WorkerContext
from workers.agent.errors import LeaseRejected, RequestRefused, RequestRejected, ServerUnreachable
from workers.agent.failpoints import failpoint
from workers.agent.http.wire import LeasePayload, OciPayload, StepsPayload
from workers.agent.image_job import ImageJob, OutputCapture
from workers.agent.image_pull import ImagePull
from workers.agent.lease_client import LeaseClient
from workers.agent.log_shipper import LogShipper, LogTrimmer
from workers.agent.next_claim import NextClaim
from workers.agent.outcomes import JobFailed, JobReleased, JobStopped, check_outcome, classify_exception
from workers.agent.result_spool import SpoolEntry
from workers.agent.run_recorder import RunRecorder, rewrite_run_for_retry
from workers.agent.sanitize import counted, one_line
from workers.agent.steps import StepTracker, step_result
from workers.agent.workflow_job import StepSequence
from workers.engines.contract import (
    EgressPolicy,
    EngineUnavailable,
    ImageRoot,
    RunLimits,
    RunResult,
    RunSpec,
    SandboxFailed,
    StopSignal,
    TraceLevel,
)
from workers.engines.oci.documents import ImageInvalid
from workers.engines.oci.engine import OciEngine
from workers.engines.oci.images import ImageStopped, ImageTree, PulledImage

logger = logging.getLogger(__name__)
T = TypeVar("T")

GRACE_SECONDS = 2.0
# For the tail of the log, which a slow connection sends in so long. A job that is being canceled has less time.
FLUSH_SECONDS = 30.0
FLUSH_SECONDS_STOPPED = 3.0
# How long an engine may take to fail before the server is informed that the command runs.
START_SECONDS = 1.0
MAX_TRACED = 64  # iterations in a final message, which has the worst findings of each
MAX_NAMED = 20  # files that were not stored, in the log of the job
LEASE_ENDED = "lease_ended"  # the server's reason after a final message


class JobRunner:
    """Runs the job of one lease in one slot. `run` is the job's own thread; others call the other methods."""

    def __init__(
        self, context: WorkerContext, lease: LeasePayload, slot: int, next_claim: NextClaim | None = None
    ) -> None:
        self._context = context
        self._lease = lease
        self._job = lease.job
        self._slot = slot
        self._workspace: Path | None = None
        self._next_claim = next_claim or NextClaim()
        self._client = LeaseClient(context.client, lease, self._next_claim)
        self._missing_content: list[str] = []  # of the repository
        self._trimmer = LogTrimmer(context.limits.log_head_bytes, context.limits.log_tail_bytes)
        self._stop = StopSignal()
        self._cancel_requested = False
        self._lost = False
        self._abandoned = False
        self._command_started = False  # the command has started
        self._uploading = False
        self._active = ActiveLease(lease, self, local_deadline=0.0, grace_seconds=GRACE_SECONDS)

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None:
        if not self._cancel_requested:
            logger.info("cancel requested job=%s reason=%r", self._job.job_id, reason or "")
        self._cancel_requested = True
        # Ignored once the command has ended: the result may still count, the server decides.
        hurried = deadline_seconds is not None and deadline_seconds < GRACE_SECONDS + FLUSH_SECONDS_STOPPED
        self._stop.request(now=hurried)

    def lost(self, reason: str) -> None:
        if reason == LEASE_ENDED and self._next_claim.is_sent and not self._client.over.is_set():
            # A heartbeat says so. The final message may have ended the lease, and its response with the next lease was
            # lost: it is sent again and learns the truth.
            return
        if not self._lost:
            logger.warning("lease lost: stopping the job job=%s reason=%r", self._job.job_id, reason)
        self._lost = True
        self.stop_reporting()
        self._stop.request(now=True)

    def extended(self, deadline: float) -> None:
        self._stop.extend(deadline)

    def abandon(self) -> None:
        self._abandoned = True
        if self._uploading:
            self.stop_reporting()  # the spool keeps the result for the next process
        self._stop.request(now=True)

    def stop_reporting(self) -> None:
        self._client.over.set()

    def run(self) -> None:
        """Run the job to its end. Every error is reported to the server or logged, never raised."""
        try:
            self._run()
        except LeaseRejected as stale:
            self.lost(stale.reason)
        except (RequestRejected, ServerUnreachable) as end:
            logger.warning("no more messages about the job job=%s error=%r", self._job.job_id, str(end))
        except Exception:
            logger.exception("the final message could not be sent job=%s", self._job.job_id)
        finally:
            self._context.heartbeat.remove(self._active)
            self._context.spool.forget_lease(self._lease)
            self._remove_workspace()

    def _run(self) -> None:
        """Run the phases; report an early end in one final message."""
        try:
            self._run_phases()
        except (RequestRejected, ServerUnreachable):
            raise
        except (JobFailed, JobReleased, JobStopped) as end:
            self._report_end(end)
        except Exception as error:
            logger.exception("job failed in the worker job=%s", self._job.job_id)
            self._report_end(classify_exception(error))

    def _run_phases(self) -> None:
        self._acknowledge()
        if self._job.unsent_run is not None:
            self._submit_run(*rewrite_run_for_retry(self._job.unsent_run, self._job, self._context.worker_id))
            return
        self._check_capabilities()
        self._report_phase("checking_out")
        workspace = self._check_out()
        if self._job.steps is not None:
            self._submit_result(self._run_steps(self._job.steps, workspace), b"")
        elif self._job.workflow is not None:
            self._submit_result(self._with_refusals(lambda: self._run_workflow(workspace)), b"")
        elif self._job.oci is not None:
            self._submit_result(self._run_image(self._job.oci, workspace), b"")
        elif self._job.execution is not None:
            spec = replace(self._run_spec(workspace), argv=self._job.execution.command)
            self._submit_run(*self._execute(spec))

    def _report_end(self, end: JobFailed | JobReleased | JobStopped) -> None:
        """Send the final message. The cause of the stop decides it, whatever the job returned."""
        if self._client.over.is_set():
            return
        if self._cancel_requested:
            self._client.acknowledge_cancel()
        elif self._abandoned and self._command_started:
            self._client.fail(JobFailed("worker_shutdown", "The worker was stopped while the command ran."))
        elif self._abandoned:
            self._client.release(JobReleased("The worker is stopping.", unable=False, otherwise="worker_shutdown"))
        elif isinstance(end, JobReleased) and not self._command_started:
            self._context.failures.record(end.otherwise, str(end))
            self._client.release(end)
        else:
            failure = _as_failure(end)
            self._context.failures.record(failure.reason, str(failure))
            final = {} if self._job.oci is None else {"final": True}
            self._client.fail(failure, self._trimmer.facts | final)

    def _acknowledge(self) -> None:
        asked_at = boottime()
        self._client.acknowledge()
        self._context.spool.keep_lease(self._context.client.server, self._lease)
        self._active.extend(asked_at)
        self._context.heartbeat.add(self._active)

    def _check_capabilities(self) -> None:
        """Release the job if this machine cannot enforce what it requires, before any file of it is here."""
        if missing := self._context.missing_capabilities(self._job):
            message = f"This worker cannot offer {', '.join(missing)}."
            raise JobReleased(message, unable=True, otherwise="sandbox_unavailable")

    def _check_out(self) -> Path:
        source, owner = self._job.source, self._context.engine.owner(self._slot)
        workspace = self._workspace = self._make_workspace(owner)
        failpoint("worker.checkout")
        with self._checking_out(workspace):
            if source is not None:
                self._missing_content = self._context.checkout.fetch(
                    source.repo_url, source.git_commit, into=workspace, owner=owner, stop=self._stop
                )
            with open_directory(workspace, self._job.work.working_directory):
                pass  # refused before anything is executed
        return workspace

    @contextlib.contextmanager
    def _checking_out(self, workspace: Path) -> Iterator[None]:
        """Raise JobFailed or JobStopped for what a checkout into the workspace raises."""
        try:
            yield
        except CheckoutFailed as failure:
            raise JobFailed("checkout_failed", str(failure)) from None
        except CheckoutStopped:
            raise JobStopped from None
        except OSError as error:
            self._fail_if_too_large(error, workspace)
            raise

    def _fail_if_too_large(self, error: OSError, workspace: Path) -> None:
        """Raise JobFailed if the repository has filled the slot's volume, and not the worker's own disk."""
        folder, limit = self._context.folder, self._context.limits.disk_bytes
        in_volume = workspace.parent != folder.jobs and not self._context.engine.shortage(folder.path)
        if in_volume and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            message = f"The repository is too large: it does not fit into the job's disk of {limit:,} bytes."
            raise JobFailed("checkout_failed", message) from None

    def _make_workspace(self, owner: int | None) -> Path:
        context = self._context
        try:
            within = context.engine.directory(self._slot, context.folder.jobs, self._limits)
        except EngineUnavailable as missing:
            raise JobReleased(one_line(missing), unable=True, otherwise="sandbox_unavailable") from None
        return context.folder.make_workspace(self._job.job_id, owner, within)

    def _remove_workspace(self) -> None:
        """Remove the workspace and prepare the slot for the next job."""
        if self._workspace is not None:
            self._context.folder.remove_workspace(self._workspace)
            self._context.engine.reset(self._slot)

    def _execute(self, spec: RunSpec) -> tuple[bytes, dict[str, int], int | None]:
        """Run the command. Returns the payload of its run, the counts in it, and the exit code."""
        failpoint("worker.exec.before")
        self._raise_if_stopped()
        with self._recording(spec) as recorder:
            shipper = self._start_shipper(0, None)
            try:
                result = self._run_engine(spec, recorder.feed, shipper)
            finally:
                self._trimmer.flush()
                shipper.close(within=self._flush_seconds())
            self._raise_if_stopped()
            check_outcome(result, spec)
            return *recorder.payload(result), result.exit_code

    def _run_steps(self, steps: StepsPayload, workspace: Path) -> dict[str, Any]:
        """Run the steps in one workspace, home and /tmp. Returns the final result."""
        failpoint("worker.exec.before")
        first = replace(self._run_spec(workspace), environment=steps.environment, keeps_home=True)
        traces: dict[int, dict[str, Any]] = {}
        shippers: list[LogShipper] = []
        caches = JobCaches(self._client, self._context.engine, first, self._stop, steps.caches)
        caches.restore_all()

        def execute(index: int, spec: RunSpec) -> RunResult:
            self._raise_if_stopped()
            self._context.heartbeat.report_progress(self._active, tracker.progress(index))
            if shippers and not self._trimmer.is_full:  # else the step has a tail, which waits for the last step
                shippers[-1].finish()
            shippers.append(self._start_shipper(index, shippers[-1] if shippers else None))
            if spec.trace is TraceLevel.NONE:
                return self._run_engine(spec, lambda _: None, shippers[-1])
            with self._recording(spec) as recorder:
                result = self._run_engine(spec, recorder.feed, shippers[-1])
                self._raise_if_stopped()
                traces[index] = recorder.summary(result)
            return result

        tracker = StepTracker(steps, first, execute)
        try:
            result = tracker.run()
            self._trimmer.flush()  # before the uploads, which may take minutes
            self._raise_if_stopped()
            log = shippers[-1] if shippers else self._start_shipper(0, None)
            found = self._upload_artifacts(steps, workspace, log) if steps.artifacts else {}
        finally:
            self._trimmer.flush()
            for last in shippers[-1:]:
                last.close(within=self._flush_seconds())
        if result["status"] == "succeeded" and caches.has_unsaved():
            if not found.get("files"):
                self._report_phase("uploading")
            caches.save_all()
        self._raise_if_stopped()
        for step in result["steps"]:
            if step["index"] in traces:
                step["trace"] = traces[step["index"]]
        return result | found | ({"caches": caches.results()} if steps.caches else {})

    def _run_workflow(self, workspace: Path) -> dict[str, Any]:
        """Run the steps of a workflow job in one workspace, home and /tmp. Returns the final result."""
        step_count = self._client.start_steps().step_count
        first = replace(self._run_spec(workspace), keeps_home=True)
        logs: dict[int, _StepLog] = {}

        def open_log(index: int) -> _StepLog:
            self._raise_if_stopped()
            predecessor = logs[max(logs)].shipper if logs else None
            logs[index] = _StepLog(self, self._start_shipper(index, predecessor))
            return logs[index]

        def execute(index: int, spec: RunSpec) -> RunResult:
            failpoint("worker.exec.before")
            result = self._run_engine(spec, lambda _: None, logs[index].shipper)
            self._raise_if_stopped()
            return result

        job = StepSequence(
            self._client,
            step_count,
            first,
            self._context.engine.mount_points(first),
            open_log,
            execute,
            checkout=lambda values: self._check_out_step(workspace, values),
            progress=lambda progress: self._context.heartbeat.report_progress(self._active, progress),
        )
        self._raise_if_stopped()
        # A step that has ended does not run again, so from here on the job is not released.
        self._command_started = True
        self._report_phase("executing")
        try:
            return job.run()
        finally:
            self._trimmer.flush()
            if logs:
                logs[max(logs)].shipper.close(within=self._flush_seconds())

    @staticmethod
    def _with_refusals(call: Callable[[], T]) -> T:
        """Call, and end the job if the server refuses a message about its steps: nobody else would."""
        try:
            return call()
        except LeaseRejected:
            raise
        except RequestRejected as refusal:
            raise JobFailed("worker_error", f"The server refused a step: {one_line(refusal, 300)}") from None

    def _check_out_step(self, workspace: Path, values: Mapping[str, str]) -> None:
        """Replace the content of the workspace by the commit of the run, with the worker's own git.

        A step before may have left a repository whose configuration names programs.
        """
        depth = values.get("fetch-depth", "1")
        if not re.fullmatch("[0-9]{1,9}", depth):
            raise JobFailed("checkout_failed", "fetch-depth is a number of commits, or 0 for all.")
        started = self._client.start_steps()  # again: the token of the first start lasts for minutes
        url = f"{self._context.client.server}/{started.repository}.git"
        with self._checking_out(workspace):
            self._context.folder.empty(workspace)
            self._context.checkout.fetch(
                url,
                started.head_sha,
                into=workspace,
                owner=self._context.engine.owner(self._slot),
                stop=self._stop,
                token=started.checkout_token,
                depth=int(depth),
            )

    def _run_image(self, job: OciPayload, workspace: Path) -> dict[str, Any]:
        """Run the iterations of an image. Returns the final result, which names the stored output."""
        engine = self._context.images
        assert engine is not None  # noqa: S101 `missing_capabilities` has seen to it
        with contextlib.ExitStack() as stack:
            tree = self._hold_image(engine, job, stack)
            failpoint("worker.exec.before")
            self._raise_if_stopped()
            shipper = self._start_shipper(0, None)
            stack.callback(lambda: shipper.close(within=self._flush_seconds()))
            stack.callback(self._trimmer.flush)
            if tree.left_out_count:
                files = counted(tree.left_out_count, "special file")
                self._note(shipper, f"image: {files} left out: {one_line(', '.join(tree.left_out), 500)}")

            def execute(spec: RunSpec, output: OutputCapture, errors: OutputCapture) -> RunResult:
                self._raise_if_stopped()

                def take(capture: OutputCapture, data: bytes) -> None:
                    capture.take(data)
                    self._trimmer.write(shipper, data)

                sinks = partial(take, output), partial(take, errors)
                if spec.trace is TraceLevel.NONE:
                    return self._run_engine(spec, lambda _: None, shipper, *sinks)
                with self._recording(spec) as recorder:
                    result = self._run_engine(spec, recorder.feed, shipper, *sinks)
                    self._raise_if_stopped()
                    if len(traced) < MAX_TRACED:
                        traced.append(step_result(len(traced), result) | {"trace": recorder.summary(result)})
                return result

            traced: list[dict[str, Any]] = []
            folder = workspace.with_name(f"{workspace.name}.image")
            first = self._run_spec(workspace)
            iterations = ImageJob(
                job, tree.config, first, lambda directory: self._image_root(engine, tree, folder, directory), execute
            )
            failure = iterations.run()
            self._raise_if_stopped()
        name = self._store_output(iterations.output(failure))
        facts: dict[str, Any] = {"output": name} | ({"steps": traced} if traced else {})
        facts |= {} if iterations.exit_code is None else {"exit_code": iterations.exit_code}
        if failure is None:
            return {"status": "succeeded", **facts}
        return {"status": "failed", "reason": failure.reason, "message": str(failure), "final": True, **facts}

    def _store_output(self, output: bytes) -> str:
        try:
            return self._client.store_output(output, within=self._context.delivery.upload_seconds)
        except LeaseRejected:
            raise
        except RequestRefused as refusal:
            raise JobFailed("upload_rejected", f"The server refused the output: {one_line(refusal, 300)}") from None

    def _hold_image(self, engine: OciEngine, job: OciPayload, stack: contextlib.ExitStack) -> ImageTree:
        """Return the tree of the image, pulled and unpacked if no job before had it, until the stack is closed."""
        limits = self._context.limits

        def pull(folder: Path) -> PulledImage:
            pull = ImagePull(
                self._context.client.transport,
                repository=job.repository,
                token=job.pull_token,
                stop=self._stop,
                shortage=lambda: engine.shortage(self._context.folder.path),
            )
            return pull.pull(job.digest, folder, limits.disk_bytes)

        return self._with_image_errors(
            lambda: stack.enter_context(
                # Under the name of its repository: of another one the server decides anew who may pull it.
                engine.image(
                    f"{job.repository}@{job.digest}",
                    self._slot,
                    self._context.folder.jobs,
                    limits,
                    pull=pull,
                    stop=self._stop,
                )
            )
        )

    @contextlib.contextmanager
    def _image_root(self, engine: OciEngine, tree: ImageTree, folder: Path, directory: str) -> Iterator[ImageRoot]:
        with contextlib.ExitStack() as stack:
            yield self._with_image_errors(lambda: stack.enter_context(engine.root(tree, self._slot, folder, directory)))

    @staticmethod
    def _with_image_errors(prepare: Callable[[], T]) -> T:
        try:
            return prepare()
        except ImageInvalid as invalid:
            raise JobFailed("image_invalid", one_line(invalid)) from None
        except ImageStopped:
            raise JobStopped from None
        except EngineUnavailable as missing:
            raise JobReleased(one_line(missing), unable=True, otherwise="sandbox_unavailable") from None

    @contextlib.contextmanager
    def _recording(self, spec: RunSpec) -> Iterator[RunRecorder]:
        """Record one run, in the process that reads the traces of the slot."""
        context, expected = self._context, spec.egress.allow if spec.egress else ()
        with context.trace_readers.reading(self._slot, context.engine.mount_points(spec), expected=expected) as reader:
            yield RunRecorder(context.worker_id, self._job, spec, reader)

    def _upload_artifacts(self, steps: StepsPayload, workspace: Path, log: LogShipper) -> dict[str, Any]:
        """Upload what the steps left in the working directory, and return its description.

        Files that are not stored are named in the log of the last step.

        The directory is opened again: a step may have replaced it, or a directory above it, by a link out of the
        workspace.
        """
        reasons: Counter[str] = Counter()
        errors: dict[str, Exception] = {}
        try:
            with open_directory(workspace, steps.working_directory) as folder:
                found = artifacts.find_artifacts(folder, steps.artifacts, reasons)
                if found["files"]:
                    self._report_phase("uploading")
                    uploader = ArtifactUploader(self._client, self._stop.requested.is_set)
                    errors |= uploader.upload_all(folder, found["files"])
        except CheckoutFailed as failure:
            logger.warning("no artifacts job=%s error=%r", self._job.job_id, str(failure))
            found = {"files": [], "files_omitted": 1}
            reasons["directory_replaced"] += 1
        refused = {path for path, error in errors.items() if getattr(error, "status", None) == HTTPStatus.BAD_REQUEST}
        if refused:
            found["files"] = [file for file in found["files"] if file["path"] not in refused]
            found["files_omitted"] += len(refused)
            reasons["name_refused"] = len(refused)
        for reason, count in reasons.items():
            self._note(log, f"artifacts: {counted(count, 'file')} left out, {artifacts.REASONS[reason]}")
        for path in sorted(errors)[:MAX_NAMED]:
            self._note(log, f"artifacts: not stored: {one_line(path, 200)}: {one_line(errors[path], 200)}")
        return found | ({"files_omitted_reasons": dict(reasons)} if reasons else {})

    def _raise_if_stopped(self) -> None:
        """Raise JobStopped if a stop was requested, or if the lease ran out while this process was stopped."""
        if boottime() >= self._active.local_deadline:
            self.lost("no response from the server")
        if self._stop.requested.is_set():
            raise JobStopped

    def _start_shipper(self, step: int, predecessor: LogShipper | None) -> LogShipper:
        shipper = LogShipper(
            partial(self._client.log, step=step), lambda stale: self.lost(stale.reason), predecessor=predecessor
        )
        shipper.start()
        for missing in self._missing_content if predecessor is None else ():
            self._note(shipper, f"not fetched: {missing}")
        return shipper

    def _note(self, log: LogShipper, text: str) -> None:
        """Write a line of the worker into the log of the job."""
        self._trimmer.write(log, f"[{text}]\n".encode())

    def _run_engine(
        self,
        spec: RunSpec,
        feed: Callable[[bytes], None],
        shipper: LogShipper,
        output: Callable[[bytes], None] | None = None,
        errors: Callable[[bytes], None] | None = None,
    ) -> RunResult:
        """Run a command; its output goes to the log, unless `output` and `errors` take it."""
        if not self._command_started:
            self._context.heartbeat.report_phase(self._active, "executing", delay=START_SECONDS)
        try:
            result = self._context.engine.run(
                spec,
                output=self._marking_start(output or partial(self._trimmer.write, shipper)),
                trace=self._marking_start(feed),
                stop=self._stop,
                errors=errors,
            )
        except EngineUnavailable as missing:
            raise JobReleased(one_line(missing), unable=True, otherwise="sandbox_unavailable") from None
        except SandboxFailed as failure:
            raise JobFailed("sandbox_apply_failed", one_line(failure)) from None
        self._command_started = True
        if result.memory_kills and result.kind != "out_of_memory":  # the command did not report it
            kills = counted(result.memory_kills, "kill")
            self._note(shipper, f"memory: {kills} by the kernel at the limit of {spec.limits.memory_bytes:,} bytes")
        return result

    def _marking_start(self, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Wrap a sink: its first bytes mark the start of the command."""

        def take(data: bytes) -> None:
            if not self._command_started:
                self._command_started = True
                self._context.heartbeat.report_phase(self._active, "executing")
            sink(data)

        return take

    def _submit_run(self, payload: bytes, counts: dict[str, int], exit_code: int | None) -> None:
        final: dict[str, Any] = {"counts": counts}
        final |= {} if exit_code is None else {"exit_code": exit_code}
        self._submit_result(final, payload)

    def _submit_result(self, final: dict[str, Any], payload: bytes) -> None:
        """Keep the result on disk until the server has it. Without a payload there is nothing to upload."""
        final |= self._trimmer.facts
        entry = SpoolEntry(self._context.client.server, self._lease, final, payload)
        self._context.spool.put(entry)
        self._context.failures.record(final.get("reason"), final.get("message", ""))
        self._uploading = True
        failpoint("worker.upload.before")
        try:
            if self._active.phase == "executing":  # the command ended before the server was informed
                self._report_phase("executing")
            if payload:
                self._report_phase("uploading")
            self._context.delivery.deliver(entry, over=self._client.over, next_claim=self._next_claim)
        except LeaseRejected as stale:
            self.lost(stale.reason)
        if self._lost:  # the result is useless; after an abandon the next process delivers it
            self._context.spool.remove(entry)

    def _run_spec(self, workspace: Path) -> RunSpec:
        """Return the spec without the command."""
        work = self._job.work
        return RunSpec(
            argv=(),
            workspace=workspace,
            slot=self._slot,
            timeout_seconds=work.timeout_seconds,
            working_directory=work.working_directory,
            egress=EgressPolicy(work.egress) if work.allow_network else None,
            allow_exec=work.allow_exec,
            trace=work.trace,
            grace_seconds=GRACE_SECONDS,
            limits=self._limits,
        )

    @property
    def _limits(self) -> RunLimits:
        """Return the limits of the job: those of the worker, or of the machine that an `oci` job asks for."""
        limits, job = self._context.limits, self._job.oci
        if job is None:
            return limits
        return replace(limits, memory_bytes=job.memory_bytes, cpu_percent=100 * job.cpus, disk_bytes=job.disk_bytes)

    def _report_phase(self, phase: str) -> None:
        self._active.phase = None
        try:
            self._client.report(phase)
        except LeaseRejected:
            raise
        except (RequestRejected, ServerUnreachable) as error:
            logger.warning("phase not reported job=%s phase=%s error=%r", self._job.job_id, phase, str(error))
            self._context.heartbeat.report_phase(self._active, phase)

    def _flush_seconds(self) -> float:
        if self._client.over.is_set():
            return 0.0
        return FLUSH_SECONDS_STOPPED if self._stop.requested.is_set() else FLUSH_SECONDS


class _StepLog:
    """The log of a step of a workflow job."""

    def __init__(self, runner: JobRunner, shipper: LogShipper) -> None:
        self._runner, self.shipper = runner, shipper

    def note(self, text: str) -> None:
        self._runner._note(self.shipper, text)  # noqa: SLF001 the log of its job

    def close(self) -> None:
        """Send the log before the step ends, unless a part of it waits for the end of the job."""
        if not self._runner._trimmer.is_full:  # noqa: SLF001
            self.shipper.close(within=self._runner._flush_seconds())  # noqa: SLF001


def _as_failure(end: JobFailed | JobReleased | JobStopped) -> JobFailed:
    """Return the failure of a job that can no longer be released, because its command has started."""
    if isinstance(end, JobStopped):
        return JobFailed("worker_error", "The command was stopped without a request.")
    return end if isinstance(end, JobFailed) else JobFailed(end.otherwise, str(end))
