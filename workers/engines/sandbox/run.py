"""One run of one job, the same for every engine that isolates: start, trace, watch, end, and report."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

from workers.engines.contract import NetworkRecord, ResourceUsage, RunResult, SandboxFailed, Sink, StopSignal
from workers.engines.limits.cgroups import CgroupUsage
from workers.engines.limits.resource_monitor import ResourceMonitor, VolumeGauge
from workers.engines.network.egress import EgressProxy
from workers.engines.sandbox import processes
from workers.engines.sandbox.backend import SandboxBackend
from workers.engines.sandbox.exit_status import Observation, classify_exit
from workers.engines.sandbox.launcher import Launcher
from workers.engines.sandbox.pumps import PipePump, TracePump, trace_fifo
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.sandbox.supervisor import RunSupervisor
from workers.engines.tracing import strace_format
from workers.engines.tracing.seccomp_notify import NotifyHandler, SyscallRequest, SyscallResponse

_LAST_SECONDS = 5.0  # to empty the pipes after everything was killed


class SandboxRun:
    """One run: `run` is called once."""

    def __init__(
        self,
        environment: RunEnvironment,
        backend: SandboxBackend,
        output: Sink,
        trace: Sink,
        errors: Sink | None = None,
    ) -> None:
        limits = environment.spec.limits
        self.environment, self.backend = environment, backend
        self.launcher = Launcher(replace(backend.launch_spec(), has_errors=errors is not None))
        self.proxy = EgressProxy(environment.spec.egress, environment.resolver) if environment.spec.egress else None
        self.fifo, reader, self.hold = trace_fifo(environment.trace, environment.uid)
        self.lines = TracePump(reader, trace, limits.trace_bytes, own_execs=backend.own_execs)
        ours, self.theirs = os.pipe()
        if environment.uid is not None:
            os.fchown(
                self.theirs, environment.uid, environment.uid
            )  # or `> /dev/stderr`, which opens it anew, is refused
        self.output = PipePump("output", ours, output, sys.maxsize)
        ours, self.stderr = os.pipe()
        if errors is not None and environment.uid is not None:
            os.fchown(self.stderr, environment.uid, environment.uid)
        self.errors = PipePump("errors", ours, errors or (lambda _: None), sys.maxsize if errors else 0)
        self.gauge = environment.gauge(backend.members)
        self.monitor = ResourceMonitor(
            limits, self.gauge, backend.members, counts_all=environment.group is None, reserve=environment.reserve
        )
        self.notify_handler: NotifyHandler | None = None
        self.has_gone = False  # the launcher may start the command
        self.reason: str | None = None
        self.cpu_seconds: float | None = None
        self.records: tuple[NetworkRecord, ...] = ()

    def run(self, stop: StopSignal) -> RunResult:
        started_at = time.time()
        stop.follow(self.backend.reaper.renew)
        top = self._spawn()
        try:
            self._watch(top, stop)
        finally:
            observed = self._shut_down(top)
        for error in self._errors():
            raise error
        has_started = self.lines.command is not None if self.backend.is_traced else self.has_gone
        if observed.failure is None and not has_started and not self.reason:
            raise SandboxFailed(self._error_output())
        return self._result(observed, started_at)

    def _errors(self) -> list[Exception]:
        return [part.error for part in (self.output, self.errors, self.lines, self.monitor) if part.error]

    def _spawn(self) -> subprocess.Popen[bytes]:
        command, passed = self.backend.command(self.launcher, self.fifo)
        try:
            # An empty environment: every process inside can read that of pid 1.
            return subprocess.Popen(
                command, env={}, cwd="/", stdin=subprocess.DEVNULL, stdout=self.theirs, stderr=self.stderr,
                pass_fds=[*passed, *self.launcher.passed], start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # such as a command longer than the kernel takes
            for descriptor in (self.hold, *(pump.descriptor for pump in (self.lines, self.output, self.errors))):
                os.close(descriptor)
            self.launcher.close()
            raise SandboxFailed(f"The sandbox could not be started: {error.strerror}.") from error
        finally:
            for descriptor in (*passed, self.theirs, self.stderr):
                os.close(descriptor)
            self.launcher.started()

    def _watch(self, top: subprocess.Popen[bytes], stop: StopSignal) -> None:
        for pump in (self.output, self.lines, self.errors):
            pump.start()
        self.backend.started(top)
        if self.launcher.wait_until_ready(top, stop.requested.is_set) and self.backend.is_ready():
            self._start_handler()
            self.monitor.start()
            self.launcher.go()
            self.has_gone = True
            if not self.backend.is_traced:
                self.lines.sink(b"")
            self.reason = RunSupervisor(
                self.environment.spec,
                stop,
                top,
                members=self.backend.members,
                kill=self.backend.kill,
                exceeded_limit=lambda: "sink failed" if self._errors() else self.monitor.exceeded,
                command_ended=lambda: self.lines.has_ended,
            ).wait()
        elif stop.requested.is_set():
            self.reason = "stopped"

    def _start_handler(self) -> None:
        def record(request: SyscallRequest, response: SyscallResponse) -> None:
            if self.backend.is_traced:
                self.lines.answered(strace_format.format_denied_call(request, response))

        self.notify_handler = NotifyHandler(self.launcher.take("notices"), self.backend.handlers(self.proxy), record)
        self.notify_handler.start()
        if self.proxy and "port" in self.launcher.given:
            self.proxy.listen_on(socket.socket(fileno=self.launcher.take("port")))

    def _shut_down(self, top: subprocess.Popen[bytes]) -> Observation:
        """End the processes, then what serves them, then their resources: each step waits for the one before."""
        self.lines.hurry()
        all_ended = self._end_processes(top)
        self.monitor.stop()
        os.close(self.hold)
        for pump in (self.lines, self.output, self.errors):
            pump.join(_LAST_SECONDS)
        if self.notify_handler:
            self.notify_handler.stop()
        self.records = self.proxy.finish() if self.proxy else ()
        observed = self._observe(self.launcher.exact(self.backend.close(top)))
        self.launcher.close()
        if not all_ended:
            raise SandboxFailed("Processes of the job are still alive.")
        return observed

    def _end_processes(self, top: subprocess.Popen[bytes]) -> bool:
        if top.returncode is None:
            if not processes.has_ended(top.pid):
                self.backend.kill()
            if not processes.has_ended(top.pid, within=_LAST_SECONDS):
                top.kill()
                processes.has_ended(top.pid, within=processes.DEATH_SECONDS)
            self.cpu_seconds = processes.cpu_seconds(top.pid)  # before it is reaped
        top.wait()
        group, uid = self.environment.group, self.environment.uid
        if group is not None and not group.kill():
            return False
        # A job cannot leave its group. Where the kernel says that nothing is in it, the processes of the whole machine
        # are not read.
        return uid is None or (group is not None and group.is_empty()) or processes.kill_uid(uid)

    def _observe(self, status: int | None) -> Observation:
        """Return the facts about the end. The trace takes precedence; `status` counts without one, or if it was cut."""
        code, name = self.lines.exit_code, self.lines.killed_by
        if code is None and name is None and status is not None:
            code, name = (None, _signal_name(-status)) if status < 0 else (status, None)
        usage = self.environment.group.usage() if self.environment.group else CgroupUsage()
        return Observation(self.reason or self.monitor.exceeded, code, name, self.launcher.start_error(), usage)

    def _error_output(self) -> str:
        """Return the error output of the sandbox's programs, without control characters and paths of this machine."""
        text = self.errors.beginning.decode("utf-8", "replace").replace(
            str(self.environment.spec.workspace), "WORKSPACE"
        )
        return re.sub(r"[^\n\x20-\x7e]", "?", text).strip()[-500:] or "The sandbox ended without an error message."

    def _result(self, observed: Observation, started_at: float) -> RunResult:
        kind, code, name = classify_exit(observed)
        usage, monitor = observed.usage, self.monitor
        return RunResult(
            kind=kind,
            exit_code=code,
            signal=name,
            started_at=started_at,
            finished_at=time.time(),
            output_bytes=self.output.total + self.errors.passed_on,
            trace_bytes=self.lines.total,
            trace_truncated=self.lines.truncated,
            enforced_layers=self.backend.layers + (("disk_volume",) if isinstance(self.gauge, VolumeGauge) else ()),
            tool_version=self.backend.version,
            memory_kills=usage.out_of_memory_kills,
            resources=ResourceUsage(
                memory_bytes=usage.memory_peak or monitor.memory_peak or None,
                processes=usage.processes_peak or monitor.processes_peak or None,
                disk_bytes=monitor.disk_peak,
                cpu_seconds=usage.cpu_seconds or self.cpu_seconds,
            ),
            network=self.records,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
