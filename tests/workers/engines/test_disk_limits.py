"""The disk limit of a job: files without a name, many names, the time between two measurements, inodes, the machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workers.engines.conftest import FIRST_UID, REAL, SMALL
from workers.engines.contract import EngineUnavailable, StopSignal
from workers.engines.limits import disk, volumes
from workers.engines.limits.disk import deleted_use, tree_use
from workers.engines.limits.reserve import FreeSpace, Reserve
from workers.engines.limits.resource_monitor import ResourceMonitor, TreeGauge
from workers.engines.sandbox import self_test

MIB = 1 << 20
ROOT = Path(__file__).parents[3]

# take(name, bytes): a file of so many bytes without writing them. The file, or undef.
TAKE = """
use strict; use warnings; $| = 1;
sub take { my ($name, $bytes) = @_; open my $file, '+>', $name or return;
    syscall(285, fileno $file, 0, 0, $bytes + 0) == 0 ? $file : undef }
"""
MAP = "my $address = syscall 9, 0, 4096, 3, 1, fileno $file, 0; die if $address == -1;"
HOLD_MAPPED = (
    TAKE + f"for (1 .. 12) {{ my $file = take('held', {16 * MIB}) or last; {MAP} unlink 'held'; print 'x' }} sleep 4"
)
# Each goes into a socket of our own, is closed here, and is never received.
HOLD_IN_FLIGHT = (
    TAKE
    + f"""
socketpair(my $one, my $other, 1, 1, 0) or die;
for (1 .. 12) {{
    my $file = take('held', {16 * MIB}) or last;
    my $byte = 'x'; my $vector = pack 'P Q', $byte, 1;
    my $control = pack 'Q i i i x4', 20, 1, 1, fileno $file;
    my $message = pack 'Q L x4 P Q P Q i x4', 0, 0, $vector, 1, $control, 24, 0;
    syscall(46, fileno $one, $message, 0) == 1 or die "sendmsg: $!";
    unlink 'held'; close $file; print 'x';
}}
sleep 4
"""
)


@pytest.fixture(params=["volume", "measured"])
def limited(request, bench, monkeypatch):
    """The bench of both engines, with the kernel's limit and without."""
    if request.param == "measured":
        monkeypatch.setattr(bench.engine, "volumes", None, raising=False)
    elif os.geteuid() != 0:
        pytest.skip("needs root: volumes")
    return bench


@pytest.fixture
def measured(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "volumes", None, raising=False)
    return bench


@pytest.fixture
def in_volume(bench):
    assert bench.engine.volumes, "this machine has volumes for root"
    return bench


def test_files_that_are_only_mapped_count(limited, limits):
    """192 MiB, a page of each mapped, no name, no descriptor."""
    run = limited.perl(HOLD_MAPPED, limits=limits)
    assert run.kind == "disk_full", run.output


def test_files_in_flight_over_a_socket_count(limited, limits):
    run = limited.perl(HOLD_IN_FLIGHT, limits=limits)
    assert run.kind == "disk_full", run.output


def test_what_is_written_between_two_measurements_and_stays_counts(limited, limits):
    """The command ends successfully, too quickly for a measurement at intervals."""
    script = TAKE + f'sleep 1; take("big$_", {48 * MIB}) for 1 .. 4; exit 0'
    run = limited.perl(script, limits=limits)
    assert run.kind == "disk_full", run.result


def test_the_disk_is_measured_once_more_after_the_command_has_ended(limited, limits, monkeypatch):
    monkeypatch.setattr("workers.engines.limits.resource_monitor._TICK", 1000.0)  # no measurement while it runs
    run = limited.perl(TAKE + f'take("big$_", {48 * MIB}) for 1 .. 4; exit 0', limits=limits)
    assert (run.kind, run.result.exit_code) == ("disk_full", 0), run.result


def test_many_names_do_not_buy_time(limited, limits):
    """Further names of one file need no block; each makes the measurement longer. There are more than may be files."""
    limits = replace(limits, inodes=4000)
    names = "open my $f, '>', 'n' or die; for my $d (1 .. 4) { mkdir $d; link 'n', \"$d/$_\" or die for 1 .. 1250 }"
    script = TAKE + names + f"sleep 1; take(\"big$_\", {48 * MIB}) for 1 .. 4; unlink glob 'big*'; exit 0"
    run = limited.perl(script, limits=limits, timeout_seconds=120)
    if limited.engine.volumes:
        assert run.result.resources.disk_bytes <= limits.disk_bytes + 20 * MIB
    else:
        assert run.kind == "disk_full", run.result


def test_more_files_than_inodes_are_a_full_disk(limited, limits):
    script = "mkdir 'd'; for (1 .. 3000) { open my $f, '>', \"d/$_\" or last } sleep 20"
    assert limited.perl(script, limits=replace(limits, inodes=1000)).kind == "disk_full"


def test_a_job_within_its_limits_is_left_alone(limited, limits):
    script = TAKE + f"take('big', {48 * MIB}) or die; for (1 .. 500) {{ open my $f, '>', \"f$_\" or die }} sleep 1"
    run = limited.perl(script, limits=limits)
    assert (run.kind, run.result.exit_code) == ("exited", 0), run.output
    assert 48 * MIB <= run.result.resources.disk_bytes <= 52 * MIB


def test_a_machine_that_runs_low_stops_the_job_without_blame(limited, limits, monkeypatch):
    monkeypatch.setattr(limited.engine, "reserve", Reserve(bytes=1 << 60))
    assert limited.sh("sleep 20", limits=limits).kind == "worker_disk_full"


def test_a_machine_without_inodes_stops_the_job_without_blame(limited, limits, monkeypatch):
    monkeypatch.setattr(limited.engine, "reserve", Reserve(inodes=1 << 60))
    assert limited.sh("sleep 20", limits=limits).kind == "worker_disk_full"


# --- volumes --------------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("hold", [HOLD_MAPPED, HOLD_IN_FLIGHT], ids=["mapped", "in_flight"])
def test_the_kernel_never_gives_more_than_the_limit(in_volume, limits, hold):
    """Four of twelve files of 16 MiB; the kernel refuses the fifth."""
    run = in_volume.perl(hold, limits=limits)
    assert len(run.output) <= 4
    assert run.result.resources.disk_bytes <= limits.disk_bytes + 8 * MIB


@pytest.mark.root
def test_the_layer_is_named(in_volume):
    assert "disk_volume" in in_volume.sh("true").result.enforced_layers


@pytest.mark.root
def test_a_job_in_no_volume_is_refused(in_volume):
    place = in_volume.base / "elsewhere"
    place.mkdir()
    os.chown(place, in_volume.engine.owner(0), in_volume.engine.owner(0))
    spec = replace(in_volume.spec("true"), workspace=place)
    with pytest.raises(EngineUnavailable, match="volume"):
        in_volume.engine.run(spec, output=bytes, trace=bytes, stop=StopSignal())


@pytest.mark.root
def test_a_volume_is_reused_when_it_is_clean_and_replaced_when_not(in_volume, limits):
    engine = in_volume.engine
    where = engine.directory(3, in_volume.base, limits)
    first = engine.volumes.of(where)
    engine.reset(3)
    assert engine.volumes.of(engine.directory(3, in_volume.base, limits)) is first
    (where / "left").write_bytes(b"x" * 2 * MIB)
    engine.reset(3)
    second = engine.volumes.of(engine.directory(3, in_volume.base, limits))
    assert second is not first
    assert list(where.iterdir()) == []
    (where / "left").touch()  # the next job has the same uid
    engine.reset(3)
    assert engine.volumes.of(engine.directory(3, in_volume.base, limits)) is not second
    assert list(where.iterdir()) == []


@pytest.mark.root
def test_other_limits_get_another_volume(in_volume, limits):
    engine = in_volume.engine
    first = engine.volumes.of(engine.directory(3, in_volume.base, limits))
    second = engine.volumes.of(engine.directory(3, in_volume.base, replace(limits, disk_bytes=32 * MIB)))
    assert first is not second


@pytest.mark.root
def test_space_of_deleted_files_returns_to_the_machine(in_volume, limits):
    limits = replace(limits, disk_bytes=512 * MIB)
    engine = in_volume.engine
    where = engine.directory(3, in_volume.base, limits)
    volume = engine.volumes.of(where)
    (where / "big").write_bytes(b"x" * 200 * MIB)
    os.sync()
    assert volume.allocated_bytes > 190 * MIB
    (where / "big").unlink()
    engine.reset(3)
    assert volume.allocated_bytes < 80 * MIB


@pytest.mark.root
def test_what_is_not_on_disk_yet_is_taken_from_the_machine_s_free_space(in_volume, limits):
    limits = replace(limits, disk_bytes=512 * MIB)
    engine = in_volume.engine
    where = engine.directory(3, in_volume.base, limits)
    volume = engine.volumes.of(where)
    before = volume.unwritten_bytes + volume.allocated_bytes
    (where / "big").write_bytes(b"x" * 100 * MIB)
    assert volume.unwritten_bytes + volume.allocated_bytes - before > 95 * MIB


def text_of(path):
    """Return the content; nothing once the kernel has removed the file, which it may do before the read."""
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.root
def test_a_killed_worker_leaves_no_mount_and_no_loop_device(base):
    script = """
import sys, time
from pathlib import Path
from workers.engines.limits import volumes
from workers.engines.contract import RunLimits
found, why = volumes.find()
assert found, why
print(found.directory(0, Path(sys.argv[1]), RunLimits(disk_bytes=8 << 20)), flush=True)
time.sleep(60)
"""
    before = Path("/proc/self/mountinfo").read_text()
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(base)], cwd=root, stdout=subprocess.PIPE, text=True
    ) as worker:
        place = worker.stdout.readline().strip()
        inside = Path(f"/proc/{worker.pid}/mountinfo").read_text()
        (device,) = [line.split()[-2] for line in inside.splitlines() if f" {place} " in line]
        assert Path("/proc/self/mountinfo").read_text() == before, "nobody else sees the mount"
        worker.kill()
    backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    until = time.monotonic() + 10
    while str(base) in text_of(backing):
        assert time.monotonic() < until
        time.sleep(0.02)
    Path(place).rmdir()
    assert list(base.iterdir()) == [], "the image has no name"


def test_without_its_tool_a_machine_measures_and_says_so(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "volumes", None)
    monkeypatch.setattr(
        volumes.sandbox_command, "tool_path", lambda name: (_ for _ in ()).throw(EngineUnavailable(f"{name}: none"))
    )
    found, why = volumes.find()
    assert found is None
    assert why


@pytest.mark.root
def test_a_volume_that_cannot_be_made_refuses_the_job(in_volume, limits, monkeypatch):
    monkeypatch.setattr(volumes, "_mount", lambda *_: (_ for _ in ()).throw(volumes.VolumeError("mount: refused")))
    with pytest.raises(EngineUnavailable, match="slot 5: mount: refused"):
        in_volume.engine.directory(5, in_volume.base, limits)
    assert list(in_volume.base.iterdir()) == []


# --- the self-test --------------------------------------------------------------------------------------------------------


@pytest.fixture
def only_the_disk_s_check(monkeypatch):
    """Shorten the jobs that fill the disk, and leave the other jobs out of the self-test."""
    monkeypatch.setattr(self_test, "_SECONDS", 2.0)
    # The same seconds end their jobs, which a busy machine may not finish by then: the disk would not be tested.
    monkeypatch.setattr(self_test, "check_isolation", lambda _: [])
    monkeypatch.setattr(self_test, "check_limits", lambda _: [])


@pytest.mark.usefixtures("only_the_disk_s_check")
def test_a_worker_whose_disk_limit_does_not_hold_does_not_start(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "volumes", None)
    monkeypatch.setattr(bench.engine, "use_volumes", False)
    monkeypatch.setattr(TreeGauge, "exceeds", lambda *_: False)
    missing = bench.engine.check().missing
    assert any("limit of disk bytes" in words for words in missing), missing
    assert any("limit of disk files" in words for words in missing), missing


@pytest.mark.root
@pytest.mark.usefixtures("only_the_disk_s_check")
def test_a_volume_that_is_larger_than_the_limit_does_not_pass_the_self_test(bench, monkeypatch):
    real = volumes._image
    monkeypatch.setattr(
        volumes, "_image", lambda folder, wanted: real(folder, replace(wanted, disk_bytes=wanted.disk_bytes * 64))
    )
    monkeypatch.setattr("workers.engines.limits.resource_monitor.VolumeGauge.exceeds", lambda *_: False)
    assert any("limit of disk bytes" in words for words in bench.engine.check().missing)


@pytest.mark.root
def test_the_self_test_leaves_no_volume(bench, monkeypatch, base):
    """No job runs in its slot, so nothing else would unmount it."""
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    assert bench.engine.check().missing == ()
    assert bench.engine.volumes is not None
    assert [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(base) in line] == []
    assert list(base.iterdir()) == []


# --- measuring without a volume -------------------------------------------------------------------------------------------


def test_growth_of_the_file_system_asks_for_a_walk_at_once(tmp_path, limits, monkeypatch):
    gauge = TreeGauge(limits, [tmp_path], list)
    used = [0]
    monkeypatch.setattr(gauge, "_used", lambda: used[0])  # other processes write to the real file system
    monkeypatch.setattr(f"{TreeGauge.__module__}.time", SimpleNamespace(monotonic=lambda: 1000.0))
    gauge.measure(None, lambda: False)
    assert not gauge.is_due()
    used[0] += limits.disk_bytes + 1
    assert gauge.is_due()


def test_a_walk_ends_at_the_first_entry_too_many(tmp_path):
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").touch()
    assert tree_use([tmp_path], 1000).entries == 60
    assert tree_use([tmp_path], 10).entries == 11


def test_every_name_of_a_file_is_an_entry_and_its_blocks_count_once(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * MIB)
    for number in range(9):
        os.link(tmp_path / "file", tmp_path / str(number))
    use = tree_use([tmp_path], 1000)
    assert (use.entries, use.bytes) == (10, MIB)


@pytest.mark.root
def test_a_deleted_file_in_the_table_of_a_thread_is_found(tmp_path):
    """Its descriptors are not those of the process."""
    script = """
import ctypes, os, sys, threading
def own():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    file = open(sys.argv[1], "wb"); file.write(b"x" * (1 << 20)); file.flush(); os.unlink(sys.argv[1])
    print("held", flush=True)
    threading.Event().wait(60)
threading.Thread(target=own, daemon=True).start()
threading.Event().wait(60)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "f")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        use = deleted_use([holder.pid], tmp_path.stat().st_dev)
        holder.kill()
    assert use.bytes == MIB


def test_a_meter_that_fails_ends_the_job(measured, limits, monkeypatch):
    def fail(*_):
        raise RuntimeError("no measurement")

    monkeypatch.setattr(TreeGauge, "free", fail)
    with pytest.raises(RuntimeError, match="no measurement"):
        measured.sh("sleep 20", limits=limits)


def test_the_largest_job_is_stopped_first(tmp_path):
    class Fixed:
        def __init__(self, taken, free):
            self.taken, self.left = taken, free

        def is_due(self):
            return True

        def measure(self, *_):
            return disk.DiskUse(self.taken)

        def exceeds(self, _):
            return False

        def free(self):
            return FreeSpace(self.left)

    def monitor(taken, free):
        return ResourceMonitor(SMALL, Fixed(taken, free), list, counts_all=False, reserve=Reserve(bytes=100))

    small, large = monitor(10, 80), monitor(20, 80)
    for one in (large, small):
        one._active.add(one)
        one.check()
    try:
        assert (small.exceeded, large.exceeded) == (None, "worker_disk_full")
        small.gauge.left = 40
        small.check()
        assert small.exceeded == "worker_disk_full"
    finally:
        for one in (large, small):
            one.stop()


# --- an ordinary user ---------------------------------------------------------------------------------------------------

ORDINARY = """
import sys
from pathlib import Path
from workers.engines import engine_named
from workers.engines.contract import RunLimits, RunSpec, StopSignal
name, workspace, program = sys.argv[1:]
engine = engine_named(name, reserve_bytes=0, reserve_inodes=0)
limits = RunLimits(disk_bytes=64 << 20)
spec = RunSpec(("/usr/bin/perl", "-e", program), Path(workspace), 0, 60.0, limits=limits)
output = bytearray()
print(engine.run(spec, output=output.extend, trace=bytes, stop=StopSignal()).kind)
print(output.decode(), file=sys.stderr)
"""


@pytest.mark.root  # to become another user
@pytest.mark.parametrize("name", REAL)
def test_an_ordinary_user_s_worker_measures_what_it_may_not_look_at(base, name):
    """Mapped files are not readable: the growth of the file system decides."""
    uid = FIRST_UID + 190
    shutil.copytree(ROOT / "workers", base / "workers", ignore=shutil.ignore_patterns("__pycache__"))
    workspace = base / "home" / "job"
    workspace.mkdir(parents=True)
    for path in (workspace, workspace.parent):
        os.chown(path, uid, uid)
    base.chmod(0o755)  # Python lists the directory that it imports from
    as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]

    def run(*arguments):
        command = [*as_user, "--bounding-set=-all", "/usr/bin/python3", "-c", *arguments]
        return subprocess.run(command, check=False, cwd=base, capture_output=True, text=True, timeout=120)

    if run("import enum; enum.StrEnum").returncode:
        pytest.skip("the system's Python is older than 3.11")
    done = run(ORDINARY, name, str(workspace), HOLD_MAPPED)
    assert done.stdout.splitlines()[-1:] == ["disk_full"], done.stderr
