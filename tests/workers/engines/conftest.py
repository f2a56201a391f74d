"""Engines as they are on this machine, and places for jobs that the slot's uid can reach."""

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workers.engines.upstreams import Upstream
from workers.engines import engine_named
from workers.engines.contract import RunLimits, RunResult, RunSpec, StopSignal

# Other suites may run on this machine at the same time: uids of our own.
FIRST_UID = 200_000 + os.getpid() % 5000 * 200
REAL = ("bubblewrap", "restricted")
SMALL = RunLimits(memory_bytes=256 << 20, processes=64, disk_bytes=64 << 20, trace_bytes=8 << 20)


def whole_calls(trace: str) -> list[str]:
    """The lines of a trace, each call that strace printed in two parts as one line, at the place of its end."""
    begun: dict[str, str] = {}
    calls = []
    for line in trace.splitlines():
        process = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix("<unfinished ...>").rstrip()
        elif " resumed>" in line and process in begun:
            calls.append(begun.pop(process) + line.split(" resumed>", 1)[1])
        else:
            calls.append(line)
    return calls + list(begun.values())


@dataclass
class Run:
    """The outcome of one run."""

    result: RunResult
    output: str
    trace: str
    workspace: Path

    @property
    def kind(self):
        return self.result.kind

    def seen(self, *words):
        """The calls of the trace that hold all these words.

        Between begin and end of a call strace may print lines of other processes: the call is then two lines. They are
        one here.
        """
        return [call for call in whole_calls(self.trace) if all(word in call for word in words)]


class Bench:
    """Runs commands with one engine, each in a workspace and a slot of its own."""

    def __init__(self, engine, base):
        self.engine, self.base = engine, base
        self.counter = itertools.count()

    def place(self, slot=0, files=None, limits=SMALL):
        workspace = self.engine.directory(slot, self.base, limits) / f"job-{next(self.counter)}"
        workspace.mkdir()
        for name, text in (files or {}).items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            path.chmod(0o755)
        owner = self.engine.owner(slot)
        if owner is not None:
            for path in (workspace, *workspace.rglob("*")):
                os.chown(path, owner, owner)
        return workspace

    def spec(self, *argv, slot=0, files=None, **details):
        details = {"timeout_seconds": 20.0, "grace_seconds": 0.3, "limits": SMALL} | details
        workspace = self.place(slot, files, details["limits"])
        return RunSpec(argv=argv, workspace=workspace, slot=slot, **details)

    def close(self):
        """Remove the volumes, so that the directory around them can go."""
        if getattr(self.engine, "volumes", None):
            self.engine.volumes.close()

    def run(self, *argv, stop=None, on_start=None, **details):
        """Run a command; call `on_start` when it starts, by its first line in the trace."""
        spec = self.spec(*argv, **details)
        output, trace = bytearray(), bytearray()

        def take_trace(data):
            if on_start and not trace:
                on_start()
            trace.extend(data)

        result = self.engine.run(spec, output=output.extend, trace=take_trace, stop=stop or StopSignal())
        return Run(result, output.decode("utf-8", "replace"), trace.decode("utf-8", "replace"), spec.workspace)

    def sh(self, script, **details):
        return self.run("sh", "-c", script, **details)

    def perl(self, script, **details):
        return self.run("/usr/bin/perl", "-e", script, **details)


@pytest.fixture(scope="session")
def checked_engines():
    """The engines that run here, each with what its check has found.

    One that does not run is a failure, not a skip: what it needs could be installed.
    """
    made = {name: engine_named(name, first_uid=FIRST_UID) for name in (*REAL, "oci")}
    found = {name: (engine, engine.check()) for name, engine in made.items()}
    for name, (_, capabilities) in found.items():
        assert capabilities.missing == (), name
    return found


@pytest.fixture(scope="session")
def engines(checked_engines):
    return {name: engine for name, (engine, _) in checked_engines.items()}


@pytest.fixture
def base():
    """Below /tmp and not pytest's own directory, which is closed to the uids of slots."""
    place = Path(tempfile.mkdtemp(prefix="engine-test-"))
    place.chmod(0o711)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=REAL)
def bench(request, engines, base):
    with contextlib.closing(Bench(engines[request.param], base)) as made:
        yield made


@pytest.fixture
def bwrap(engines, base):
    with contextlib.closing(Bench(engines["bubblewrap"], base)) as made:
        yield made


@pytest.fixture
def restricted(engines, base):
    with contextlib.closing(Bench(engines["restricted"], base)) as made:
        yield made


@pytest.fixture
def limits():
    return SMALL


@pytest.fixture
def upstream():
    server = Upstream()
    yield server
    server.close()


def host_state():
    kernel = Path("/proc/sys/kernel")
    sysctls, spaces = ("core_pattern", "hostname", "domainname"), ("mnt", "net", "pid", "user", "ipc", "uts")
    return {
        "sysctls": {name: (kernel / name).read_text() for name in sysctls},
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if not _is_volume(line)],
        "namespaces": {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in spaces},
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "system": {path: Path(path).stat().st_mtime_ns for path in ("/usr", "/usr/bin", "/etc/passwd")},
    }


def _is_volume(line):
    """The worker's own mount, in its own namespace; that of the self-test is removed after it."""
    return "/slot-" in line and any(name in line for name in ("/engine-test-", "/runtime-orchestrator-check-"))


@pytest.fixture
def unchanged_machine(engines):  # their check enters a mount namespace, once
    """Check that what a job attacks is the same afterwards."""
    before = host_state()
    yield
    after = host_state()
    assert sorted(set(after["mounts"]) ^ set(before["mounts"])) == []
    assert after == before
