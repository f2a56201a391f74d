"""Answers the system calls that the seccomp filter leaves to the worker, mostly with a refusal, and records each.

strace never sees these calls, so the lines that `strace_format` makes of them are the only record. Calls are answered
one at a time and, after a first burst, no faster than `RATE`: a job that repeats them in a loop slows itself down, not
the worker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from workers.engines import seccomp

_RECEIVE, _SEND, _STILL_WAITING, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_REQUEST = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, call, architecture, instruction, arguments
_SEND_WITH_IT = 2
_CONTINUE = 1

BURST, RATE = 500, 500.0
NAMES = {number: name for name, number in seccomp.CALLS.items()}


@dataclass(frozen=True)
class SyscallResponse:
    """The answer to a call: `error` (an errno), a `value`, or a new `descriptor` in the job, whose number is the value.

    `proceeds`: the kernel carries the call out, with the arguments that its registers then hold. Use it only for calls
    that are judged by their registers: memory may change in between.
    """

    error: int = 0
    value: int = 0
    descriptor: int | None = None
    flags: int = 0  # O_CLOEXEC for the descriptor, or 0
    proceeds: bool = False


@dataclass(frozen=True)
class SyscallRequest:
    """One call that waits for its answer.

    What is read from the memory of the job may change at any time: fit for a record, never for a decision that allows
    anything.
    """

    token: int
    pid: int
    call: str
    arguments: tuple[int, ...]

    def memory(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end of a mapping, none where nothing can be read."""
        data = b""
        with contextlib.suppress(OSError, OverflowError):
            handle = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while len(data) < size:
                    step = min(size - len(data), 4096 - (address + len(data)) % 4096)
                    data += os.pread(handle, step, address + len(data))
            finally:
                os.close(handle)
        return data

    def text(self, address: int, size: int = 4096) -> bytes:
        return self.memory(address, size).split(b"\0", 1)[0]

    def word(self, argument: int) -> int:
        """Return the low 32 bits of an argument, as a C int."""
        return struct.unpack("=i", struct.pack("=I", self.arguments[argument] & 0xFFFFFFFF))[0]


SyscallHandler = Callable[[SyscallRequest], SyscallResponse]


def control_own_process(request: SyscallRequest) -> SyscallResponse:
    """Let a process change how its own threads run, and no other process. For `seccomp.process_control_rules`."""
    call = request.call
    if request.word(0) == seccomp.ONE_PROCESS.get(call, request.word(0)):
        target = request.word(seccomp.CONTROLS[call])
        if target == 0 or Path(f"/proc/{request.pid}/task/{target}").exists():
            return SyscallResponse(proceeds=True)
    return SyscallResponse(error=errno.EPERM)


def accept(_: SyscallRequest) -> SyscallResponse:
    """Report success and change nothing: programs that hide keys in their memory continue."""
    return SyscallResponse()


def refuse(request: SyscallRequest) -> SyscallResponse:
    """Refuse a call: sockets with the errno of a kernel that lacks their family or protocol."""
    if request.call not in {"socket", "socketpair"}:
        return SyscallResponse(error=errno.EPERM)
    return SyscallResponse(error=errno.EPROTONOSUPPORT if request.word(0) in seccomp.FAMILIES else errno.EAFNOSUPPORT)


class NotifyHandler(threading.Thread):
    """Owns the listener. Calls without an entry in `handlers` are refused. `record` gets request and response."""

    def __init__(
        self,
        listener: int,
        handlers: dict[str, SyscallHandler],
        record: Callable[[SyscallRequest, SyscallResponse], None],
    ) -> None:
        super().__init__(name="notify-handler", daemon=True)
        self.listener, self.handlers, self.record = listener, handlers, record
        self._allowance, self._filled_at = float(BURST), time.monotonic()
        self._stop_reader, self._stop_writer = os.pipe()

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        poll.register(self._stop_reader, select.POLLIN)
        while True:
            events = dict(poll.poll())
            if self._stop_reader in events or events.get(self.listener, 0) & (select.POLLHUP | select.POLLERR):
                break
            self._handle_one()
        os.close(self.listener)
        os.close(self._stop_reader)

    def stop(self) -> None:
        """Stop, after the last process of the job has died.

        The wait is limited: before Linux 6.6 a call whose process died at that time leaves the thread waiting in the
        kernel.
        """
        os.close(self._stop_writer)
        self.join(2.0)

    def _handle_one(self) -> None:
        buffer = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer)
        except OSError:
            return  # the process died, or a signal came: the next poll shows which
        token, pid, _flags, number, _arch, _at, *arguments = _REQUEST.unpack(buffer)
        request = SyscallRequest(token, pid, NAMES.get(number, f"syscall_{number}"), tuple(arguments))
        self._limit_rate()
        with contextlib.suppress(OSError):  # the process died while it waited
            self._reply(request, self.handlers.get(request.call, refuse)(request))

    def _reply(self, request: SyscallRequest, response: SyscallResponse) -> None:
        fcntl.ioctl(self.listener, _STILL_WAITING, struct.pack("=Q", request.token))
        if response.proceeds:
            fcntl.ioctl(self.listener, _SEND, struct.pack("=QqiI", request.token, 0, 0, _CONTINUE))
            return
        if response.descriptor is None:
            self.record(request, response)  # before the answer, so that later calls of the process are recorded later
            fcntl.ioctl(self.listener, _SEND, struct.pack("=QqiI", request.token, response.value, -response.error, 0))
            return
        try:
            spec = bytearray(
                struct.pack("=QIIII", request.token, _SEND_WITH_IT, response.descriptor, 0, response.flags)
            )
            self.record(request, replace(response, value=fcntl.ioctl(self.listener, _ADD_DESCRIPTOR, spec)))
        finally:
            os.close(response.descriptor)

    def _limit_rate(self) -> None:
        now = time.monotonic()
        self._allowance = min(self._allowance + (now - self._filled_at) * RATE, BURST)
        self._filled_at = now
        if self._allowance < 1:
            time.sleep(1 / RATE)
        self._allowance -= 1
