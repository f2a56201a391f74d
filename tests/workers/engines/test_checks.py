"""The start-up checks find nothing on a sound machine, and each protection that is removed."""

import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from tests.workers.engines.conftest import FIRST_UID, REAL
from tests.workers.engines.takeover import unprotect_init
from workers.engines import engine_named, landlock, seccomp
from workers.engines.bubblewrap import backend as bubblewrap_backend
from workers.engines.bubblewrap.backend import BubblewrapBackend
from workers.engines.contract import EngineUnavailable, SandboxFailed, StopSignal
from workers.engines.limits.cgroups import ControlGroup
from workers.engines.restricted import backend as restricted_backend
from workers.engines.sandbox import command, launcher, processes, reaper, self_test


@pytest.fixture(params=REAL)
def engine(request):
    return engine_named(request.param, first_uid=FIRST_UID)


@pytest.fixture
def bubblewrap():
    return engine_named("bubblewrap", first_uid=FIRST_UID)


@pytest.fixture
def restricted():
    return engine_named("restricted", first_uid=FIRST_UID)


@pytest.fixture
def new_filters():
    """Let each engine build its seccomp programs anew, in this test and after it."""
    builders = (bubblewrap_backend._filter, restricted_backend._filter, seccomp.init_program)
    for builder in builders:
        builder.cache_clear()
    yield
    for builder in builders:
        builder.cache_clear()


def missing(engine):
    return " | ".join(engine.check().missing)


def test_a_well_machine_offers_everything_in_two_seconds(engine):
    started = time.process_time(), children_seconds()
    found = engine.check()
    assert found.missing == ()
    assert {"linux", "ptrace", "egress", "exec_control"} <= found.offered
    assert ("namespaces" in found.offered) == (engine.name == "bubblewrap")
    assert time.process_time() - started[0] < 1
    assert children_seconds() - started[1] < 4, "under two seconds of time when the machine has nothing else to do"


def children_seconds():
    """The processor time of the processes that this one has started, which no load of the machine changes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_program_that_is_not_installed_is_named(engine, monkeypatch):
    monkeypatch.setattr(command, "TOOL_PATH", "/nowhere")
    found = missing(engine)
    assert "strace is not installed" in found
    assert "setpriv is not installed" in found
    assert ("bwrap is not installed" in found) == (engine.name == "bubblewrap")


def test_another_processor_is_named(engine, monkeypatch):
    monkeypatch.setattr(command, "ARCHITECTURE", "s390x")
    assert "filtered on s390x only" in missing(engine)


def test_an_old_bubblewrap_is_named(bubblewrap, monkeypatch):
    monkeypatch.setattr("workers.engines.bubblewrap.engine._help", lambda: "--bind SRC DEST")
    assert "too old" in missing(bubblewrap)
    monkeypatch.setattr("workers.engines.bubblewrap.engine._help", lambda: "bwrap: no such library\n")
    assert "this bubblewrap does not run: bwrap: no such library" in missing(bubblewrap)


def test_a_kernel_without_landlock_is_named_and_runs_nothing(restricted, monkeypatch):
    monkeypatch.setattr(restricted, "abi", 0)
    assert "no Landlock" in missing(restricted)
    assert "no Landlock" in " ".join(restricted.requirements())


def test_an_ordinary_user_needs_landlock_that_scopes_signals(restricted, monkeypatch):
    monkeypatch.setattr(restricted, "abi", landlock.SCOPES_SINCE - 1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "signal its user's other processes" in " ".join(restricted.requirements())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert restricted.requirements() == []


@pytest.mark.root
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5])
def test_older_landlocks_do_for_root(restricted, monkeypatch, abi):
    monkeypatch.setattr(restricted, "abi", abi)
    assert restricted.check().missing == ()


@pytest.mark.parametrize("abi", [0, 1, 2, 5])
def test_older_landlocks_do_for_bubblewrap(bubblewrap, monkeypatch, abi):
    monkeypatch.setattr(bubblewrap, "abi", abi)
    assert bubblewrap.check().missing == ()


@pytest.mark.usefixtures("new_filters")
def test_the_filter_is_missed(engine, monkeypatch):
    monkeypatch.setattr(seccomp, "common_rules", list)
    words = {"bubblewrap": "open a socket to the hypervisor", "restricted": "make a user namespace"}
    assert f"a job can {words[engine.name]}" in missing(engine)


@pytest.mark.usefixtures("new_filters")
def test_the_filter_against_other_architectures_is_missed(engine, monkeypatch):
    monkeypatch.setattr(seccomp, "KILL", seccomp.ALLOW)
    assert "calls of another architecture are not killed" in missing(engine)


@pytest.mark.usefixtures("new_filters")
def test_the_filter_against_programs_is_missed(engine, monkeypatch):
    monkeypatch.setattr(seccomp, "one_program_rules", lambda _: [])
    assert "a job that may not start programs can" in missing(engine)


def test_landlock_is_missed(restricted, monkeypatch):
    monkeypatch.setattr(landlock, "READABLE", ("/",))
    assert "a job can read a file of the machine" in missing(restricted)


def test_the_read_only_root_is_missed(bubblewrap, monkeypatch):
    arguments = BubblewrapBackend._arguments
    monkeypatch.setattr(BubblewrapBackend, "_arguments", lambda backend, passed: arguments(backend, passed)[:-2])
    assert "a job can write beside its workspace" in missing(bubblewrap)


def test_the_empty_environment_is_missed(bubblewrap, monkeypatch):
    unprotect_init(monkeypatch, "dumpable", "landlock")
    traced = command.with_strace
    monkeypatch.setattr(command, "with_strace", lambda *given: ["/usr/bin/env", "SECRET=x", *traced(*given)])
    assert "the environment of pid 1 is readable" in missing(bubblewrap)


def test_a_takeover_of_pid_1_keeps_the_worker_from_starting(bubblewrap, monkeypatch):
    unprotect_init(monkeypatch, "dumpable", "landlock", "filter")
    found = missing(bubblewrap)
    for words in ("read the registers of", "write into the memory of", "signal"):
        assert f"a job can {words} the process above it" in found
    assert "pid 1 of a sandbox is not filtered" in found
    assert "pid 1 of a sandbox is dumpable" in found


@pytest.mark.parametrize(
    ("protection", "words"),
    [
        ("dumpable", "pid 1 of a sandbox is dumpable"),
        ("filter", "pid 1 of a sandbox is not filtered"),
        pytest.param(
            "landlock",
            "a job can signal the process above it",
            marks=pytest.mark.skipif(landlock.version() < landlock.SCOPES_SINCE, reason="needs Linux 6.12"),
        ),
    ],
)
def test_each_protection_of_pid_1_is_missed(bubblewrap, monkeypatch, protection, words):
    unprotect_init(monkeypatch, protection)
    assert words in missing(bubblewrap)


@pytest.mark.usefixtures("new_filters")
def test_a_tracer_that_can_be_written_is_found(restricted, monkeypatch):
    rules = [rule for rule in seccomp.common_rules() if rule.call != "process_vm_writev"]
    monkeypatch.setattr(landlock, "shape", lambda _: None)
    monkeypatch.setattr(seccomp, "common_rules", lambda: rules)
    monkeypatch.setattr(seccomp, "process_control_rules", list)
    found = missing(restricted)
    assert "a job can write into the memory of the process above it" in found
    assert "a job can write into another process" in found
    assert "a job can set limits of the process above it" in found


def test_a_readable_mount_table_is_missed(bubblewrap, monkeypatch):
    hide = b"hide_mounts($one->{o}) if $one->{m};"
    assert hide in launcher.SCRIPT
    monkeypatch.setattr(launcher, "SCRIPT", launcher.SCRIPT.replace(hide, b""))
    found = missing(bubblewrap)
    assert "a job can read the table of mounts" in found
    assert "a job has capabilities" in found


def test_a_descriptor_that_leaks_is_found(bubblewrap, monkeypatch):
    monkeypatch.setattr(launcher, "SCRIPT", launcher.SCRIPT.replace(b"syscall 436, 3, 0xFFFFFFFF, 4", b"0"))
    assert "descriptors leak into the job" in missing(bubblewrap)


def test_a_tracer_that_sees_nothing_is_found(engine, monkeypatch):
    monkeypatch.setattr(command, "STRACE_OPTIONS", ("-f", "-q", "-ttt", "-e", "trace=execve"))
    assert "does not start" in missing(engine) or "the tracer saw nothing" in missing(engine)


@pytest.mark.root
@pytest.mark.parametrize(("name", "words"), [("pids.max", "processes"), ("memory.limit_in_bytes", "memory")])
def test_a_limit_that_does_not_hold_is_found(bubblewrap, monkeypatch, name, words):
    if bubblewrap.hierarchy.version == 2:
        name = {"memory.limit_in_bytes": "memory.max"}.get(name, name)
    settings = ControlGroup._settings
    dropped = {name, "memory.memsw.limit_in_bytes"} if words == "memory" else {name}
    monkeypatch.setattr(
        ControlGroup, "_settings", lambda group, limits: [s for s in settings(group, limits) if s[1] not in dropped]
    )
    assert f"the limit of {words} does not hold" in missing(bubblewrap)


def test_a_reaper_that_does_not_watch_the_worker_is_found(bubblewrap, monkeypatch):
    deaf = reaper.SCRIPT.replace(b"last if worker_is_gone(0.05);", b"select undef, undef, undef, 0.05;")
    assert deaf != reaper.SCRIPT
    monkeypatch.setattr(reaper, "SCRIPT", deaf)
    assert "survives the death of its worker" in missing(bubblewrap)


def test_a_sandbox_that_does_not_start_is_found(bubblewrap, monkeypatch):
    arguments = BubblewrapBackend._arguments
    monkeypatch.setattr(
        BubblewrapBackend, "_arguments", lambda backend, passed: ["--no-such-option", *arguments(backend, passed)]
    )
    assert "the sandbox does not start: bwrap: Unknown option --no-such-option" in missing(bubblewrap)


def test_a_sandbox_that_does_not_start_has_last_words_without_paths(bwrap, monkeypatch):
    arguments = BubblewrapBackend._arguments
    spec = bwrap.spec("true")
    broken = ["--ro-bind", f"{spec.workspace}/no\x01such", "/x"]
    monkeypatch.setattr(BubblewrapBackend, "_arguments", lambda backend, passed: [*broken, *arguments(backend, passed)])
    with pytest.raises(SandboxFailed) as failed:
        bwrap.engine.run(spec, output=bytes, trace=bytes, stop=StopSignal())
    assert str(failed.value).startswith("bwrap: Can't find source path WORKSPACE/no?such")
    assert not spec.workspace.with_name(spec.workspace.name + ".private").exists()


def test_what_a_killed_check_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, held, fresh = (tmp_path / f"runtime-orchestrator-check-{name}" for name in ("left", "held", "fresh"))
    for place in (left, held, fresh):
        (place / "job").mkdir(parents=True)
    for place in (left, held):
        os.utime(place, (0, 0))
    with self_test._held(held), self_test.workspace(None):
        assert not left.exists()
        assert held.exists()
        assert fresh.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_spare_slots_are_for_checks_only(engine):
    slots = engine.slots
    with slots.spare() as first, slots.spare() as second:
        assert first != second
        assert min(first, second) >= 160


@pytest.mark.root
def test_a_uid_of_somebody_is_not_used(monkeypatch):
    engine = engine_named("bubblewrap", first_uid=65534)  # a system user, who may run other things
    with pytest.raises(EngineUnavailable, match="belongs to the account nobody"), engine.slots.running(0):
        pass


@pytest.mark.parametrize("uid", [0, 1, 999])
def test_uids_of_the_system_are_not_used(uid):
    with pytest.raises(EngineUnavailable, match=f"WORKER_FIRST_UID={uid}: .* belong to the system"):
        engine_named("bubblewrap", first_uid=uid)  # `runworker` reports this error in one line


def test_the_uid_of_root_is_never_swept():
    with pytest.raises(ValueError, match="never 0"):
        processes.kill_uid(0)


def test_an_ordinary_user_has_no_uids_to_give(engine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert engine.owner(3) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert engine.owner(3) == FIRST_UID + 3


def test_the_stand_in_parent_dies_with_a_worker_that_is_killed_during_the_check():
    """One was two hours old, with the sandbox of its check."""
    worker = (
        "import subprocess, sys, time; from workers.engines.sandbox.self_test import PERL, _FAKE_PARENT\n"
        "parent = subprocess.Popen([PERL, '-e', _FAKE_PARENT, '0', '/bin/sh', '-c', 'echo begun; exec sleep 60'])\n"
        "print(parent.pid, flush=True); time.sleep(60)"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", worker],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        words = {killed.stdout.readline().strip() for _ in range(2)}
        assert "begun" in words, "its sandbox runs, so it has asked for the signal"
        (pid,) = words - {"begun"}
        stand_in = os.pidfd_open(int(pid))
        killed.kill()
        ended, _, _ = select.select([stand_in], [], [], 30)
        os.close(stand_in)
        assert ended
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
