"""Extracts events from the calls of a trace, and maintains the process tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from workers.engines.tracing.strace import Entered, Event, Exited, Killed, Superseded, TracedCall
from workers.engines.tracing.values import descriptor, strings
from workers.report.events import AttemptEvent, DeathEvent, ExecEvent, TraceEvent
from workers.report.job_paths import JobPaths, absolute
from workers.report.processes import ProcessTree, Program, TracedProcess, program_of, script_of
from workers.report.syscalls.files import CHANGES, argument, changed, moved, opened, path_of
from workers.report.syscalls.network import Sockets

# Calls that are reported whichever process makes them, and whether or not they succeed.
REPORTED_CALLS = frozenset(
    {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "kill"}
    | {"mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "open_tree", "move_mount", "unshare", "setns"}
    | {"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key", "open_by_handle_at"}
    | {"init_module", "finit_module", "kexec_load", "kexec_file_load", "reboot"}
)
_CLONES = frozenset({"clone", "clone3", "fork", "vfork"})
_NAMESPACES = {
    0x80: "TIME", 0x20000: "NS", 0x2000000: "CGROUP", 0x4000000: "UTS", 0x8000000: "IPC", 0x10000000: "USER",
    0x20000000: "PID", 0x40000000: "NET",
}  # fmt: skip
_NEW = re.compile(rb"CLONE_NEW[A-Z]+")
_HEX = re.compile(rb"0x[0-9a-f]{1,16}$")
_COMMENT = re.compile(r" ?/\*.*?\*/")
_WORD = 120  # characters kept of an argument
_MAX_ARGV = 64

Meaning = Callable[[TracedCall, TracedProcess], Iterator[TraceEvent]]


class EventExtractor:
    """Takes the calls in order, and yields each event with the process that it is about."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self.processes = ProcessTree(paths.mount_points.workspace)
        sockets = Sockets()
        self._meanings: dict[str, Meaning] = {
            **dict.fromkeys(("open", "openat", "openat2", "creat"), opened),
            **dict.fromkeys(CHANGES, changed),
            **dict.fromkeys(("chdir", "fchdir"), moved),
            **dict.fromkeys(("execve", "execveat"), self._executed),
            **dict.fromkeys(_CLONES, self._cloned),
            **dict.fromkeys(REPORTED_CALLS, _reported),
            "unshare": _unshared,
            **dict.fromkeys(("sendto", "sendmsg", "sendmmsg"), sockets.sent),
            **dict.fromkeys(("socket", "socketpair"), sockets.created),
            "connect": sockets.connected,
            "bind": sockets.bound,
            "listen": sockets.listened,
        }

    def extract(self, event: Event) -> Iterator[tuple[TraceEvent, TracedProcess]]:
        process = self.processes.of(event.pid, event.time)
        match event:
            case TracedCall():
                meaning = self._meanings.get(event.name)
                if meaning is not None:
                    for trace_event in meaning(event, process):
                        yield trace_event, process
            case Entered(name=name, arguments=arguments) if name in _CLONES:
                self.processes.enters_clone(process, is_thread=b"CLONE_THREAD" in arguments)
            case Exited(code=code, time=time):
                self.processes.ended(process, time, code=code)
            case Killed(signal=signal, time=time):
                self.processes.ended(process, time, signal=signal)
                yield DeathEvent(signal), process
            case Superseded(pid=pid, thread=thread_id, time=time):
                self.processes.superseded(pid, thread_id, time)

    def _cloned(self, call: TracedCall, process: TracedProcess) -> Iterator[TraceEvent]:
        flags = b" ".join(call.arguments)
        self.processes.forked(process, call.result, is_thread=b"CLONE_THREAD" in flags)
        yield from _entered(call, flags if b"flags=" in flags else argument(call, 0))

    def _executed(self, call: TracedCall, process: TracedProcess) -> Iterator[TraceEvent]:
        index = 1 if call.name == "execveat" else 0
        file = descriptor(argument(call, 0)) if index else None
        path = path_of(call, process, index)
        if path is None:
            return
        unnamed = file is not None and (file.deleted or (file.path or b"").startswith(b"/memfd:"))
        argv = tuple(word.decode("utf-8", "replace") for word in strings(argument(call, index + 1))[:_MAX_ARGV])
        yield ExecEvent(path, argv, call.errno, unnamed)
        if call.ok or (call.result is None and call.cut):
            program = self._program(path, argv, process.leader.cwd)
            self.processes.executed(process, program, command=" ".join(argv), shown=self._paths.shown(path))

    def _program(self, path: str, argv: tuple[str, ...], directory: str) -> Program:
        script = script_of(path, argv)
        # Python searches a module of `-m name` in the current directory first, and then where PYTHONPATH says.
        script_is_own = script is not None and (
            argv[1] == "-m" or self._paths.is_own(absolute(script.encode(), directory))
        )
        return program_of(path, argv, is_own=self._paths.is_own(path), script_is_own=script_is_own)


def _unshared(call: TracedCall, _process: TracedProcess) -> Iterator[TraceEvent]:
    """Yield new namespaces; a call of unshare may also only end what was shared."""
    yield from _entered(call, argument(call, 0))


def _entered(call: TracedCall, flags: bytes) -> Iterator[TraceEvent]:
    """Yield new namespaces: by name, as strace shows them, or as the number of a call that the worker refused."""
    names = [name.decode() for name in _NEW.findall(flags)]
    if _HEX.match(flags):
        names = [f"CLONE_NEW{name}" for bit, name in _NAMESPACES.items() if int(flags, 16) & bit]
    if names:
        yield AttemptEvent(call.name, ("|".join(names),), call.errno)


def _reported(call: TracedCall, _process: TracedProcess) -> Iterator[TraceEvent]:
    words = (_COMMENT.sub("", word.decode("utf-8", "replace"))[:_WORD] for word in call.arguments[:4])
    yield AttemptEvent(call.name, tuple(words), call.errno)
