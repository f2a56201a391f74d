"""The story of one job on this worker, from the acknowledgement of its lease to its last word, told to the server."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from workers.agent import artifacts
from workers.agent.active_leases import ActiveLease, boottime
from workers.agent.checkout import CheckoutFailed, CheckoutStopped, inside
from workers.agent.context import WorkerContext
from workers.agent.errors import LeaseRejected, RequestRejected, ServerUnreachable
from workers.agent.failpoints import failpoint
from workers.agent.http.wire import LeasePayload, StepsPayload
from workers.agent.lease_client import LeaseClient
from workers.agent.log_shipper import LogShipper
from workers.agent.outcomes import JobFailed, JobReleased, JobStopped, check_outcome, classify_exception
from workers.agent.result_spool import SpoolEntry
from workers.agent.run_recorder import RunRecorder, rewrite_run_for_retry
from workers.agent.sanitize import counted, one_line
from workers.agent.steps import StepTracker
from workers.engines.contract import EgressPolicy, EngineUnavailable, RunResult, RunSpec, SandboxFailed, StopSignal

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
# For the last of the log. A job that waits to be canceled has less time.
FLUSH_SECONDS = 10.0
FLUSH_SECONDS_STOPPED = 3.0
# How long an engine may take to find out that it cannot run here, before the server is told that the command runs.
START_SECONDS = 1.0


class JobRunner:
    """One lease, worked off in one slot. `run` is the job's own thread; the other public calls come from others."""

    def __init__(self, bench: WorkerContext, lease: LeasePayload, slot: int) -> None:
        self._bench = bench
        self._lease = lease
        self._job = lease.job
        self._slot = slot
        self._workspace: Path | None = None
        self._voice = LeaseClient(bench.client, lease)
        self._stop = StopSignal()
        self._cancel_heard = False
        self._lost = False
        self._abandoned = False
        self._begun = False  # the command has started
        self._uploading = False
        self._held = ActiveLease(lease, self, trust_until=0.0, grace_seconds=GRACE_SECONDS)

    # --- from other threads -------------------------------------------------------------------------------------------

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None:
        if not self._cancel_heard:
            logger.info("job %s: cancel requested: %s", self._job.job_id, reason or "no reason given")
        self._cancel_heard = True
        # Nothing looks at this once the command has ended: the result may still count, the server decides.
        hurried = deadline_seconds is not None and deadline_seconds < GRACE_SECONDS + FLUSH_SECONDS_STOPPED
        self._stop.request(now=hurried)

    def lost(self, why: str) -> None:
        if not self._lost:
            logger.warning("job %s: the lease is over (%s): stopping", self._job.job_id, why)
        self._lost = True
        self.silence()
        self._stop.request(now=True)

    def abandon(self) -> None:
        self._abandoned = True
        if self._uploading:
            self.silence()  # the spool keeps the result for the next start
        self._stop.request(now=True)

    def silence(self) -> None:
        self._voice.over.set()

    # --- the job's own thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work the job off. Whatever happens is told to the server or logged, never raised."""
        try:
            self._work()
        except LeaseRejected as stale:
            self.lost(stale.reason)
        except (RequestRejected, ServerUnreachable) as end:
            logger.warning("job %s: nothing more is said about it: %s", self._job.job_id, end)
        except Exception:
            logger.exception("job %s: its end could not be told", self._job.job_id)
        finally:
            self._bench.heartbeat.drop(self._held)
            self._bench.spool.forget_lease(self._lease)
            self._remove_workspace()

    def _work(self) -> None:
        """Follow the story; what breaks it off is told in one last word."""
        try:
            self._story()
        except (RequestRejected, ServerUnreachable):
            raise
        except (JobFailed, JobReleased, JobStopped) as end:
            self._tell(end)
        except Exception as error:
            logger.exception("job %s: the worker failed", self._job.job_id)
            self._tell(classify_exception(error))

    def _story(self) -> None:
        self._acknowledge()
        if self._job.unsent_run is not None:
            self._hand_in(*rewrite_run_for_retry(self._job.unsent_run, self._job, self._bench.worker_id))
            return
        self._require()
        self._report("checking_out")
        workspace = self._check_out()
        if self._job.steps is not None:
            self._spool(self._follow(self._job.steps, workspace), b"")
        elif self._job.execution is not None:
            spec = replace(self._spec(workspace), argv=self._job.execution.command)
            recording, result = self._execute(spec)
            check_outcome(result, spec)
            self._hand_in(*recording.payload(result), result.exit_code)

    def _tell(self, end: JobFailed | JobReleased | JobStopped) -> None:
        """Whoever stopped the job decides what is said, whatever came of it."""
        if self._voice.over.is_set():
            return
        if self._cancel_heard:
            self._voice.acknowledge_cancel()
        elif self._abandoned and self._begun:
            self._voice.fail(JobFailed("worker_shutdown", "The worker was stopped while the command ran."))
        elif self._abandoned:
            self._voice.give_back(JobReleased("The worker is stopping.", unable=False, otherwise="worker_shutdown"))
        elif isinstance(end, JobReleased):
            self._voice.give_back(end)
        elif isinstance(end, JobFailed):
            self._voice.fail(end)
        else:
            self._voice.fail(JobFailed("worker_error", "The command was stopped, and nobody had asked for it."))

    def _acknowledge(self) -> None:
        asked_at = boottime()
        self._voice.acknowledge()
        self._bench.spool.keep_lease(self._bench.client.server, self._lease)
        self._held.renewed(asked_at)
        self._bench.heartbeat.hold(self._held)

    def _require(self) -> None:
        """Refuse what this machine cannot hold as asked, before anything of the job is here."""
        if missing := self._bench.lacks(self._job):
            message = f"This worker cannot offer {', '.join(missing)}."
            raise JobReleased(message, unable=True, otherwise="sandbox_unavailable")

    def _check_out(self) -> Path:
        source, owner = self._job.source, self._bench.engine.owner(self._slot)
        workspace = self._workspace = self._make_workspace(owner)
        failpoint("worker.checkout")
        try:
            if source is not None:
                self._bench.checkout.fetch(
                    source.repo_url, source.git_commit, into=workspace, owner=owner, stop=self._stop
                )
            inside(workspace, self._job.work.working_directory)
        except CheckoutFailed as failure:
            raise JobFailed("checkout_failed", str(failure)) from None
        except CheckoutStopped:
            raise JobStopped from None
        except OSError as error:
            self._refuse_large(error, workspace)
            raise
        return workspace

    def _refuse_large(self, error: OSError, workspace: Path) -> None:
        """Raise JobFailed if the repository has filled the slot's volume, and not the worker's own disk."""
        folder, limit = self._bench.folder, self._bench.limits.disk_bytes
        in_volume = workspace.parent != folder.jobs and not folder.is_nearly_full()
        if in_volume and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            message = f"The repository is too large: it does not fit into the job's disk of {limit:,} bytes."
            raise JobFailed("checkout_failed", message) from None

    def _make_workspace(self, owner: int | None) -> Path:
        bench = self._bench
        try:
            within = bench.engine.directory(self._slot, bench.folder.jobs, bench.limits)
        except EngineUnavailable as lack:
            raise JobReleased(one_line(lack), unable=True, otherwise="sandbox_unavailable") from None
        return bench.folder.make(self._job.job_id, owner, within)

    def _remove_workspace(self) -> None:
        """Leave the slot to the next job."""
        if self._workspace is not None:
            self._bench.folder.wipe(self._workspace)
            self._bench.engine.reset(self._slot)

    def _execute(self, spec: RunSpec) -> tuple[RunRecorder, RunResult]:
        failpoint("worker.exec.before")
        self._go_on()
        recording = RunRecorder(self._bench.worker_id, self._job, spec, self._bench.engine)
        pump = self._pump(0, None)
        try:
            result = self._run_engine(spec, recording.feed, pump)
        finally:
            pump.close(within=self._flush_seconds())
        self._go_on()
        return recording, result

    def _follow(self, steps: StepsPayload, workspace: Path) -> dict[str, Any]:
        """Run the steps in one workspace, home and /tmp, and return what is told at the end."""
        failpoint("worker.exec.before")
        first = replace(self._spec(workspace), environment=steps.environment, keeps_home=True)
        pumps: list[LogShipper] = []

        def execute(index: int, spec: RunSpec) -> RunResult:
            self._go_on()
            self._bench.heartbeat.show(self._held, stepping.progress(index))
            pumps.append(self._pump(index, pumps[-1] if pumps else None))
            try:
                return self._run_engine(spec, lambda _: None, pumps[-1])
            finally:
                pumps[-1].finish()

        stepping = StepTracker(steps, first, execute)
        try:
            told = stepping.follow()
        finally:
            for last in pumps[-1:]:
                last.close(within=self._flush_seconds())
        self._go_on()
        return told | artifacts.find_artifacts(workspace / steps.working_directory, steps.artifacts)

    def _go_on(self) -> None:
        """Raise Stopped if anybody has asked to stop."""
        if self._stop.requested.is_set():
            raise JobStopped

    def _pump(self, step: int, after: LogShipper | None) -> LogShipper:
        pump = LogShipper(partial(self._voice.log, step=step), lambda stale: self.lost(stale.reason), after=after)
        pump.start()
        return pump

    def _run_engine(self, spec: RunSpec, feed: Callable[[bytes], None], pump: LogShipper) -> RunResult:
        if not self._begun:
            self._bench.heartbeat.announce(self._held, "executing", within=START_SECONDS)
        try:
            result = self._bench.engine.run(
                spec, output=self._from_start(pump.write), trace=self._from_start(feed), stop=self._stop
            )
        except EngineUnavailable as lack:
            raise JobReleased(one_line(lack), unable=True, otherwise="sandbox_unavailable") from None
        except SandboxFailed as failure:
            raise JobFailed("sandbox_apply_failed", one_line(failure)) from None
        self._begun = True
        if result.output_truncated:
            pump.write(f"\n[the output ends here: {counted(result.output_bytes, 'byte')} are too many]\n".encode())
        return result

    def _from_start(self, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Let the first bytes say that the command has started."""

        def take(data: bytes) -> None:
            if not self._begun:
                self._begun = True
                self._bench.heartbeat.announce(self._held, "executing")
            sink(data)

        return take

    def _hand_in(self, payload: bytes, counts: dict[str, int], exit_code: int | None) -> None:
        final: dict[str, Any] = {"counts": counts}
        final |= {} if exit_code is None else {"exit_code": exit_code}
        self._spool(final, payload)

    def _spool(self, final: dict[str, Any], payload: bytes) -> None:
        """Keep the result on disk until the server has it. Without a payload there is nothing to upload."""
        entry = SpoolEntry(self._bench.client.server, self._lease, final, payload)
        self._bench.spool.put(entry)
        self._uploading = True
        failpoint("worker.upload.before")
        try:
            if self._held.phase == "executing":  # a quick command was over before the server heard of it
                self._report("executing")
            if payload:
                self._report("uploading")
            self._bench.delivery.deliver(entry, over=self._voice.over)
        except LeaseRejected as stale:
            self.lost(stale.reason)
        if self._lost:  # nobody wants it any more; after an abandon the next start delivers it
            self._bench.spool.remove(entry)

    def _spec(self, workspace: Path) -> RunSpec:
        """How it is held; what it does is still to be said."""
        work = self._job.work
        return RunSpec(
            argv=(),
            workspace=workspace,
            slot=self._slot,
            timeout_seconds=work.timeout_seconds,
            working_directory=work.working_directory,
            egress=EgressPolicy(work.egress) if work.allow_network else None,
            allow_exec=work.allow_exec,
            grace_seconds=GRACE_SECONDS,
            limits=self._bench.limits,
        )

    def _report(self, phase: str) -> None:
        self._held.phase = None
        try:
            self._voice.report(phase)
        except LeaseRejected:
            raise
        except (RequestRejected, ServerUnreachable) as trouble:
            logger.warning("job %s: phase %s was not taken: %s", self._job.job_id, phase, trouble)
            self._bench.heartbeat.announce(self._held, phase)

    def _flush_seconds(self) -> float:
        if self._voice.over.is_set():
            return 0.0
        return FLUSH_SECONDS_STOPPED if self._stop.requested.is_set() else FLUSH_SECONDS
