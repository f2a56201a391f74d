"""Starts child processes together, restarts those that die, and stops them in order.

No child outlives this process: the kernel kills each child when its parent dies.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.http.asgi.socket_activation import passing

LogLine = Callable[[str, str], None]  # name of the process ("" for the supervisor itself), one line of text

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 60.0  # more than MAX_RESTARTS within this time end the attempts
RESTART_DELAY_SECONDS = 1.0
STOP_TIMEOUT_SECONDS = 15.0  # between the first SIGTERM, the second one, and SIGKILL
STOP_NOTICE_SECONDS = 3.0  # after which a line names the processes that have not ended


class ProcessSupervisorError(Exception):
    """Reports in one line that a process died too often, or never became ready."""


@dataclass
class ManagedProcess:
    """Describes one child process, which gets a session of its own: Ctrl-C does not reach it directly.

    A vital process that keeps dying ends the whole supervisor. Another one ends alone. The process inherits `sockets`
    (LISTEN_FDS). They stay open here: while it is away, clients wait.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_vital: bool = True
    sockets: Sequence[socket.socket] = ()
    exits: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RESTARTS + 1))
    process: subprocess.Popen[bytes] | None = None
    restart_at: float | None = None  # monotonic time of the next start

    @property
    def is_running(self) -> bool:
        """Return whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process. Call it from the main thread: PDEATHSIG follows the thread that started the child."""
        with passing(self.sockets, self.command) as passed:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *passed.command],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=passed.descriptors,
            )
        self.restart_at = None

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.process is not None and self.is_running:
            self.process.send_signal(number)


class ProcessSupervisor:
    """Supervises processes from the main thread. The first process is the one that the others need: it stops last."""

    def __init__(self, processes: Sequence[ManagedProcess], log_line: LogLine) -> None:
        self.processes = list(processes)
        self.log_line = log_line
        self.stop_requests = 0
        self._readers: list[threading.Thread] = []

    def start(self, process: ManagedProcess) -> None:
        """Start a process and pass each line of its output on to `log_line`."""
        process.start()
        reader = threading.Thread(target=self._read_output, args=[process, process.process], daemon=True)
        reader.start()
        self._readers.append(reader)

    def poll(self) -> None:
        """Restart processes that have died. Call it several times a second.

        Raises:
            ProcessSupervisorError: A vital process has died more than `MAX_RESTARTS` times within the window.
        """
        for process in self.processes:
            if process.restart_at is not None and time.monotonic() >= process.restart_at:
                self.start(process)
            elif process.restart_at is None and process.process is not None and not process.is_running:
                self._schedule_restart(process)

    def stop(self) -> None:
        """End all processes, the first one last: SIGTERM, SIGTERM again (a worker then drops its jobs), SIGKILL.

        Every further stop request skips the rest of the current wait.
        """
        self._terminate(self.processes[1:])
        self._terminate(self.processes[:1])
        for reader in self._readers:
            reader.join(timeout=2)

    def request_stop(self, *_signal: object) -> None:
        """Count a request to stop. Usable as a signal handler."""
        self.stop_requests += 1

    def _schedule_restart(self, process: ManagedProcess) -> None:
        now = time.monotonic()
        process.exits.append(now)
        end = describe_exit(process.process.returncode if process.process else None)
        if len(process.exits) > MAX_RESTARTS and now - process.exits[0] < RESTART_WINDOW_SECONDS:
            if process.is_vital:
                raise ProcessSupervisorError(
                    f"{process.name} {end}, {len(process.exits)} times within {RESTART_WINDOW_SECONDS:.0f} seconds"
                )
            self.log_line("", f"{process.name} {end} again; it is not started any more, the other processes continue")
            process.process = None
            return
        self.log_line("", f"{process.name} {end}; starting it again ({len(process.exits)} of {MAX_RESTARTS})")
        process.restart_at = now + RESTART_DELAY_SECONDS

    def _terminate(self, processes: Sequence[ManagedProcess]) -> None:
        for _ in range(2):
            for process in processes:
                process.signal(signal.SIGTERM)
            self._wait(processes)
        for process in processes:
            process.signal(signal.SIGKILL)
        for process in processes:
            if process.process:
                process.process.wait()

    def _wait(self, processes: Sequence[ManagedProcess]) -> None:
        """Return when the processes have ended, the timeout is over, or another stop request has come."""
        begun, requests_before, is_announced = time.monotonic(), self.stop_requests, False
        while time.monotonic() - begun < STOP_TIMEOUT_SECONDS and self.stop_requests == requests_before:
            running = [process.name for process in processes if process.is_running]
            if not running:
                return
            if not is_announced and time.monotonic() - begun > STOP_NOTICE_SECONDS:
                is_announced = True
                self.log_line("", f"waiting for {', '.join(running)} to finish (Ctrl-C: do not wait)")
            time.sleep(0.05)

    def _read_output(self, process: ManagedProcess, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None  # noqa: S101 - PIPE above
        with contextlib.suppress(ValueError), popen.stdout as lines:
            for line in lines:
                self.log_line(process.name, line.decode(errors="replace").rstrip())


def describe_exit(code: int | None) -> str:
    """Return how a process ended, as the end of a sentence."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment for a child: without its database role, and with unbuffered output."""
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_ROLE"}
    return kept | {"PYTHONUNBUFFERED": "1"} | changes
