"""The story of one job on this worker, from the acknowledgement of its lease to its last word, told to the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.agent.checkout import Checkout, CheckoutFailed, CheckoutStopped, inside
from workers.agent.client import Client
from workers.agent.delivery import Delivery
from workers.agent.errors import Answered, StaleLease, Unreachable
from workers.agent.failpoints import failpoint
from workers.agent.heartbeat import Heartbeat
from workers.agent.holding import Held, suspended_too
from workers.agent.logs import LogPump
from workers.agent.recording import Recording, readdressed
from workers.agent.spool import Entry, Spool
from workers.agent.verdicts import GivenBack, JobFailed, Stopped, judge, of_error
from workers.agent.voice import Voice
from workers.agent.wire import Execution, Lease
from workers.agent.words import counted, one_line
from workers.agent.workspace import WorkFolder
from workers.engines.base import Egress, Ended, Engine, EngineUnavailable, Limits, Order, SandboxFailed, Stop

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
# For the last of the log. A job that waits to be canceled has less time.
FLUSH_SECONDS = 10.0
FLUSH_SECONDS_STOPPED = 3.0
# How long an engine may take to find out that it cannot run here, before the server is told that the command runs.
START_SECONDS = 1.0


@dataclass(frozen=True)
class Bench:
    """What every job of this worker is done with. `offered`: the capabilities that the engine has proven."""

    worker_id: str
    client: Client
    heartbeat: Heartbeat
    engine: Engine
    offered: frozenset[str]
    checkout: Checkout
    folder: WorkFolder
    spool: Spool
    delivery: Delivery
    limits: Limits = field(default_factory=Limits)


class JobRun:
    """One lease, worked off in one slot. `run` is the job's own thread; the other public calls come from others."""

    def __init__(self, bench: Bench, lease: Lease, slot: int) -> None:
        self._bench = bench
        self._lease = lease
        self._job = lease.job
        self._slot = slot
        self._voice = Voice(bench.client, lease)
        self._stop = Stop()
        self._cancel_heard = False
        self._lost = False
        self._abandoned = False
        self._begun = False  # the command has started
        self._uploading = False
        self._held = Held(lease, self, trust_until=0.0, grace_seconds=GRACE_SECONDS)

    # --- from other threads -------------------------------------------------------------------------------------------

    def canceled(self, reason: str | None, deadline_seconds: float | None) -> None:
        if not self._cancel_heard:
            logger.info("job %s: cancel requested: %s", self._job.job_id, reason or "no reason given")
        self._cancel_heard = True
        # Nothing looks at this once the command has ended: the result may still count, the server decides.
        hurried = deadline_seconds is not None and deadline_seconds < GRACE_SECONDS + FLUSH_SECONDS_STOPPED
        self._stop.ask(now=hurried)

    def lost(self, why: str) -> None:
        if not self._lost:
            logger.warning("job %s: the lease is over (%s): stopping", self._job.job_id, why)
        self._lost = True
        self.silence()
        self._stop.ask(now=True)

    def abandon(self) -> None:
        self._abandoned = True
        if self._uploading:
            self.silence()  # the spool keeps the result for the next start
        self._stop.ask(now=True)

    def silence(self) -> None:
        self._voice.over.set()

    # --- the job's own thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work the job off. Whatever happens is told to the server or logged, never raised."""
        try:
            self._work()
        except StaleLease as stale:
            self.lost(stale.reason)
        except (Answered, Unreachable) as end:
            logger.warning("job %s: nothing more is said about it: %s", self._job.job_id, end)
        except Exception:
            logger.exception("job %s: its end could not be told", self._job.job_id)
        finally:
            self._bench.heartbeat.drop(self._held)
            self._bench.folder.wipe(self._bench.folder.jobs / self._job.job_id)

    def _work(self) -> None:
        """Follow the story; what breaks it off is told in one last word."""
        try:
            self._story()
        except (Answered, Unreachable):
            raise
        except (JobFailed, GivenBack, Stopped) as end:
            self._tell(end)
        except Exception as error:
            logger.exception("job %s: the worker failed", self._job.job_id)
            self._tell(of_error(error))

    def _story(self) -> None:
        self._acknowledge()
        if self._job.unsent_run is not None:
            self._hand_in(*readdressed(self._job.unsent_run, self._job, self._bench.worker_id))
            return
        self._require(self._job.execution)
        self._report("checking_out")
        workspace = self._check_out()
        order = self._order(workspace)
        recording, ended = self._execute(order)
        judge(ended, order)
        self._hand_in(*recording.payload(ended), ended.exit_code)

    def _tell(self, end: JobFailed | GivenBack | Stopped) -> None:
        """Whoever stopped the job decides what is said, whatever came of it."""
        if self._voice.over.is_set():
            return
        if self._cancel_heard:
            self._voice.acknowledge_cancel()
        elif self._abandoned and self._begun:
            self._voice.fail(JobFailed("worker_shutdown", "The worker was stopped while the command ran."))
        elif self._abandoned:
            self._voice.give_back(GivenBack("The worker is stopping.", unable=False, otherwise="worker_shutdown"))
        elif isinstance(end, GivenBack):
            self._voice.give_back(end)
        elif isinstance(end, JobFailed):
            self._voice.fail(end)
        else:
            self._voice.fail(JobFailed("worker_error", "The command was stopped, and nobody had asked for it."))

    def _acknowledge(self) -> None:
        asked_at = suspended_too()
        self._voice.acknowledge()
        self._held.renewed(asked_at)
        self._bench.heartbeat.hold(self._held)

    def _require(self, execution: Execution) -> None:
        """Refuse what this machine cannot hold as asked, before anything of the job is here."""
        offered, isolation = self._bench.offered, self._bench.engine.isolation
        lacks = {
            f"isolation by {execution.least_isolation}": not isolation.satisfies(execution.least_isolation),
            "network through the egress proxy": execution.allow_network and "egress" not in offered,
            "a command that may not start others": not execution.allow_exec and "exec_control" not in offered,
        }
        if missing := [name for name, lacking in lacks.items() if lacking]:
            message = f"This worker cannot offer {', '.join(missing)}."
            raise GivenBack(message, unable=True, otherwise="sandbox_unavailable")

    def _check_out(self) -> Path:
        source, owner = self._job.source, self._bench.engine.owner(self._slot)
        workspace = self._bench.folder.make(self._job.job_id, owner)
        failpoint("worker.checkout")
        try:
            self._bench.checkout.fetch(source.repo_url, source.git_commit, into=workspace, owner=owner, stop=self._stop)
            inside(workspace, self._job.execution.working_directory)
        except CheckoutFailed as failure:
            raise JobFailed("checkout_failed", str(failure)) from None
        except CheckoutStopped:
            raise Stopped from None
        return workspace

    def _execute(self, order: Order) -> tuple[Recording, Ended]:
        failpoint("worker.exec.before")
        if self._stop.asked.is_set():
            raise Stopped
        recording = Recording(self._bench.worker_id, self._job, order, self._bench.engine)
        pump = LogPump(self._voice.log, lambda stale: self.lost(stale.reason))
        pump.start()
        try:
            ended = self._run_engine(order, recording, pump)
        finally:
            pump.close(within=self._flush_seconds())
        if self._stop.asked.is_set():
            raise Stopped
        return recording, ended

    def _run_engine(self, order: Order, recording: Recording, pump: LogPump) -> Ended:
        self._bench.heartbeat.announce(self._held, "executing", within=START_SECONDS)
        try:
            ended = self._bench.engine.run(
                order, output=self._from_start(pump.write), trace=self._from_start(recording.feed), stop=self._stop
            )
        except EngineUnavailable as lack:
            raise GivenBack(one_line(lack), unable=True, otherwise="sandbox_unavailable") from None
        except SandboxFailed as failure:
            raise JobFailed("sandbox_apply_failed", one_line(failure)) from None
        self._begun = True
        if ended.output_truncated:
            pump.write(f"\n[the output ends here: {counted(ended.output_bytes, 'byte')} are too many]\n".encode())
        return ended

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
        entry = Entry(self._bench.client.server, self._lease, final, payload)
        self._bench.spool.put(entry)
        self._uploading = True
        failpoint("worker.upload.before")
        try:
            if self._held.phase == "executing":  # a quick command was over before the server heard of it
                self._report("executing")
            self._report("uploading")
            self._bench.delivery.deliver(entry, over=self._voice.over)
        except StaleLease as stale:
            self.lost(stale.reason)
        if self._lost:  # nobody wants it any more; after an abandon the next start delivers it
            self._bench.spool.remove(entry)

    def _order(self, workspace: Path) -> Order:
        execution = self._job.execution
        return Order(
            argv=execution.command,
            workspace=workspace,
            slot=self._slot,
            timeout_seconds=execution.timeout_seconds,
            working_directory=execution.working_directory,
            egress=Egress(execution.egress) if execution.allow_network else None,
            allow_exec=execution.allow_exec,
            grace_seconds=GRACE_SECONDS,
            limits=self._bench.limits,
        )

    def _report(self, phase: str) -> None:
        self._held.phase = None
        try:
            self._voice.report(phase)
        except StaleLease:
            raise
        except (Answered, Unreachable) as trouble:
            logger.warning("job %s: phase %s was not taken: %s", self._job.job_id, phase, trouble)
            self._bench.heartbeat.announce(self._held, phase)

    def _flush_seconds(self) -> float:
        if self._voice.over.is_set():
            return 0.0
        return FLUSH_SECONDS_STOPPED if self._stop.asked.is_set() else FLUSH_SECONDS
