"""bwrap for one run: its arguments, its status, and the end of its pid namespace."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
from pathlib import Path

from workers.engines import landlock, seccomp
from workers.engines.network.egress import PORT, EgressProxy
from workers.engines.sandbox import command as sandbox_command
from workers.engines.sandbox import processes
from workers.engines.sandbox.backend import SandboxBackend
from workers.engines.sandbox.launcher import PROGRAM_FD, RLIMIT_DATA, RLIMIT_NPROC, LaunchSpec, memory_file
from workers.engines.sandbox.processes import HostProcess
from workers.engines.sandbox.run_dirs import RunEnvironment
from workers.engines.tracing import seccomp_notify
from workers.engines.tracing.seccomp_notify import SyscallHandler

HOME, WORKSPACE, TEMPORARY = "/home/job", "/job", "/tmp"  # noqa: S108  # names inside the sandbox
SHARED_MEMORY_BYTES = 64 << 20
_OWN_PROCESSES_INSIDE = 2  # the launcher as pid 1, and its child that becomes the command

HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"
# Nothing listens there: a lookup fails at once, and its query is in the trace.
RESOLVER = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup")
_SYSTEM_FILES = (
    "alternatives", "ca-certificates", "debian_version", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "os-release", "pki", "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip


def bound(path: Path, name: str, passed: list[int], *, how: str = "--bind-fd") -> list[str]:
    """Return the arguments that show a directory of the machine inside; add its descriptor to `passed`."""
    passed.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
    return [how, str(passed[-1]), name]


@functools.cache
def _filter(*, allow_exec: bool) -> bytes:
    """Return the filter of the command."""
    one_program = [] if allow_exec else seccomp.one_program_rules(PROGRAM_FD)
    return seccomp.program([*one_program, *seccomp.init_control_rules(), *seccomp.common_rules()])


class BubblewrapBackend(SandboxBackend):
    """Runs the job in bwrap. bwrap receives descriptors, not paths, so that no link can replace a directory."""

    own_execs = 2  # bwrap, the launcher
    layers: tuple[str, ...] = (
        *(f"{name}_namespace" for name in NAMESPACES), "mount_namespace", "no_new_privileges", "no_capabilities",
        "seccomp",
    )  # fmt: skip

    def __init__(
        self,
        environment: RunEnvironment,
        *,
        version: str,
        abi: int,
        read_only: tuple[str, ...] = (),
        cpu: int | None = None,
    ) -> None:
        self.layers += ("landlock",) if landlock.domain(abi)[0] else ()
        super().__init__(environment, version=version, abi=abi, read_only=read_only)
        self.cpu = cpu
        self.status_reader, self.status_writer = os.pipe()
        os.set_blocking(self.status_reader, False)
        self.status: dict[str, int] = {}
        self.init: int | None = None  # a pidfd of pid 1 of the namespace

    def launch_spec(self) -> LaunchSpec:
        spec = self.environment.spec
        domain, paths = landlock.domain(self.abi)
        return LaunchSpec(
            argv=spec.argv,
            directory=f"{WORKSPACE}/{self.environment.directory}",
            environment=self.environment.variables(HOME, TEMPORARY),
            filter=_filter(allow_exec=spec.allow_exec),
            port=PORT if spec.egress else None,
            one_program=not spec.allow_exec,
            own_session=True,
            limits=[] if self.environment.group else self._soft_limits(),
            init_filter=seccomp.init_program(),
            hides_mounts=True,
            landlock=domain,
            paths=paths,
        )

    def _soft_limits(self) -> list[tuple[int, int, int]]:
        """Return limits set inside, where the kernel counts the processes of this user namespace only."""
        limits = self.environment.spec.limits
        tasks = limits.processes + _OWN_PROCESSES_INSIDE
        return [(RLIMIT_NPROC, tasks, tasks), (RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes)]

    def handlers(self, proxy: EgressProxy | None) -> dict[str, SyscallHandler]:  # noqa: ARG002  # the port leads there
        return {"prctl": seccomp_notify.accept}

    def wrapper(self, passed: list[int]) -> list[str]:
        passed.append(self.status_writer)
        arguments = memory_file("arguments", b"\0".join(map(os.fsencode, self._arguments(passed))) + b"\0")
        passed.append(arguments)
        return [sandbox_command.tool_path("bwrap"), "--args", str(arguments), "--"]

    def _arguments(self, passed: list[int]) -> list[str]:
        return [
            *[f"--unshare-{name}" for name in NAMESPACES],
            # Its own pid 1 would be an unfiltered process of the job's uid, whose memory the job can write.
            "--as-pid-1",
            # For the launcher's `hide_mounts`, which drops them.
            *["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_CHROOT", "--cap-add", "CAP_SETPCAP"],
            *["--disable-userns", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"],
            *[word for name in ("/etc", "/home", "/var") for word in ("--perms", "0755", "--dir", name)],
            *self._system(),
            *["--proc", "/proc", "--dev", "/dev"],
            *self._places(passed),
            *["--json-status-fd", str(self.status_writer)],
            *["--remount-ro", "/dev", "--remount-ro", "/"],
        ]

    def _places(self, passed: list[int]) -> list[str]:
        """Return what the job has to itself; add the descriptors to `passed`."""

        def file(name: str, text: str) -> list[str]:
            passed.append(memory_file("etc", text.encode()))
            return ["--ro-bind-data", str(passed[-1]), name]

        environment = self.environment
        uid = os.geteuid() if environment.uid is None else environment.uid
        gid = os.getegid() if environment.uid is None else environment.uid
        return [
            *["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"],  # noqa: S108  # inside
            *bound(environment.temporary, TEMPORARY, passed),
            *["--symlink", "../tmp", "/var/tmp"],  # noqa: S108  # inside
            *bound(environment.home, HOME, passed),
            *bound(environment.spec.workspace, WORKSPACE, passed),
            *file("/etc/passwd", f"job:x:{uid}:{gid}:job:{HOME}:/bin/sh\n"),
            *file("/etc/group", f"job:x:{gid}:\n"),
            *file("/etc/hosts", HOSTS),
            *file("/etc/resolv.conf", RESOLVER),
            *file("/etc/nsswitch.conf", "hosts: files dns\npasswd: files\ngroup: files\n"),
        ]

    def _system(self) -> list[str]:
        found = ["--ro-bind", "/usr", "/usr"]
        for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
            path = Path(name)
            if path.is_symlink():
                found += ["--symlink", str(path.readlink()), name]
            elif path.is_dir():
                found += ["--ro-bind", name, name]
        for name in (*(f"/etc/{name}" for name in _SYSTEM_FILES), *self.read_only):
            found += ["--ro-bind-try", name, name]
        return found

    def started(self, top: subprocess.Popen[bytes]) -> None:
        if self.cpu is not None:
            with contextlib.suppress(OSError):  # a hint: on one processor, tracer and traced switch four times as fast
                os.sched_setaffinity(top.pid, {self.cpu})

    def is_ready(self) -> bool:
        self._read_status()
        with contextlib.suppress(OSError, KeyError):
            self.init = os.pidfd_open(self.status["child-pid"])
        return self.init is not None

    def members(self) -> list[HostProcess]:
        return processes.descendants(self.status["child-pid"]) if self.init is not None else []

    def kill(self) -> None:
        """Kill pid 1, so that the kernel kills the whole namespace; the reaper ends what is outside of it."""
        if self.init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
        self.reaper.release()

    def close(self, top: subprocess.Popen[bytes]) -> int | None:  # noqa: ARG002  # the status has more than its exit code
        self._read_status()
        os.close(self.status_reader)
        self.reaper.release()
        if self.init is not None:
            self._wait_for_init()
            os.close(self.init)
        code = self.status.get("exit-code")
        return code if code is None or code <= 128 else 128 - code

    def _wait_for_init(self) -> None:
        """Wait for the end of pid 1. A reaper that was killed ends before the processes below it."""
        assert self.init is not None  # noqa: S101  # the only caller checks it
        poll = select.poll()
        poll.register(self.init, select.POLLIN)
        if not poll.poll(0):
            self.kill()
            poll.poll(3000)

    def _read_status(self) -> None:
        """Read `child-pid`, set once the namespaces exist, and `exit-code`, set if the launcher ran and ended."""
        with contextlib.suppress(BlockingIOError):
            text = os.read(self.status_reader, 1 << 16).decode()
            decoder = json.JSONDecoder()
            while text := text.lstrip():
                found, end = decoder.raw_decode(text)
                self.status.update(found)
                text = text[end:]
