"""Restarts a web process on SIGHUP, with the code that is installed now, while connections are accepted all the time.

    SIGHUP  -> starts an interim process on the same sockets, and waits until that accepts connections
            -> stops accepting, and ends its own requests
            -> executes its command anew under its own number, and accepts again
            -> SIGTERM to the interim process, which ends its requests

The number stays, so systemd and `make up` need not know of the restart. If the interim process does not start, such as
after half an upgrade, the old process continues.
"""

import asyncio
import atexit
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from orchestrator.http.asgi.socket_activation import keep_over_exec, passing

log = logging.getLogger(__name__)

START_SECONDS: Final = 60.0  # for the interim process, on a machine under load
POLL_SECONDS: Final = 0.05
INTERIM_PROCESS: Final = "INTERIM_PROCESS"  # variable: the number of the process that a restarted one ends
PARENT_OF_INTERIM: Final = "PARENT_OF_INTERIM"  # variable: the number of the process that an interim one ends with
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class GracefulRestart:
    """Restarts the server of this process when it receives SIGHUP."""

    def __init__(self, sockets: Sequence[socket.socket], end_server: Callable[[], None]) -> None:
        """Create the restart; `start` makes it possible.

        Args:
            sockets: The listening sockets of the server. Copies are kept for the processes that follow.
            end_server: Makes the server end as at SIGTERM.
        """
        self.has_handed_over = False
        self._given, self._end_server = sockets, end_server
        self._kept: list[socket.socket] = []
        self._interim: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Wait for SIGHUP, and end the interim process that accepted connections until now."""
        _end_with_parent()
        _end_interim_process()
        # A terminal that closes ends its processes by the same signal.
        if threading.current_thread() is threading.main_thread() and not os.isatty(0):
            loop = asyncio.get_running_loop()

            def begin(_number: int, _frame: FrameType | None) -> None:
                loop.call_soon_threadsafe(self._begin)

            signal.signal(signal.SIGHUP, begin)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def execute_anew(self) -> NoReturn:
        """Replace this program by its own command. The server has ended."""
        assert self._interim is not None  # noqa: S101 - only after the hand-over
        atexit._run_exitfuncs()  # noqa: SLF001 - what the end of the process would do: counters are written
        # Until the new program has a handler the signal would end it. Now it waits for the handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        variables = {**keep_over_exec(self._kept), INTERIM_PROCESS: str(self._interim.pid)}
        os.execve(sys.executable, _command(), os.environ | variables)  # noqa: S606 - the same command, no shell

    def _begin(self) -> None:
        if self._task is None or (self._task.done() and not self.has_handed_over):
            self._task = asyncio.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        log.info("restart: starting a process that accepts connections meanwhile")
        self._kept = [found.dup() for found in self._given]
        self._interim = await self._started()
        if self._interim is None:
            log.error("restart: a new process does not start, so the old process continues")
            for found in self._kept:
                found.close()
            return
        self.has_handed_over = True
        self._end_server()

    async def _started(self) -> subprocess.Popen[bytes] | None:
        """Return the interim process once it accepts connections, or None if it has ended."""
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
            passing(self._kept, _command()) as passed,
        ):
            address = str(Path(folder, "notify"))
            notified.bind(address)
            notified.settimeout(0)
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns after the fork
                passed.command,
                env=os.environ | {"NOTIFY_SOCKET": address, PARENT_OF_INTERIM: str(os.getpid())},
                pass_fds=passed.descriptors,
            )
            deadline = time.monotonic() + START_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                try:
                    notified.recv(64)
                except BlockingIOError:
                    continue
                return process
            process.kill()
            process.wait()
            return None


def _end_interim_process() -> None:
    number = int(os.environ.pop(INTERIM_PROCESS, "0"))
    try:
        if number and os.waitpid(number, os.WNOHANG) == (0, 0):
            os.kill(number, signal.SIGTERM)
            threading.Thread(target=os.waitpid, args=[number, 0], name="interim-process", daemon=True).start()
    except ChildProcessError:
        log.warning("restart: process %d is no child of this one", number)


def _end_with_parent() -> None:
    """Make the kernel send SIGTERM to an interim process when its parent is killed.

    `setpriv --pdeathsig` needs a system call that the systemd unit forbids.
    """
    number = int(os.environ.pop(PARENT_OF_INTERIM, "0"))
    if number:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != number:
            signal.raise_signal(signal.SIGTERM)


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]
