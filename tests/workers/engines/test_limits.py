"""A job that exceeds a limit ends with that reason, and other jobs are not affected."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from workers.engines.contract import EngineUnavailable, StopSignal
from workers.engines.limits import disk, resource_monitor
from workers.engines.limits.cgroups import Hierarchy
from workers.engines.limits.resource_monitor import TreeGauge
from workers.engines.sandbox import self_test

MIB = 1 << 20
# Touches every page: memory that is only promised costs nothing.
EAT = "$| = 1; my @held; for (1 .. {mib}) {{ push @held, chr($_ % 250 + 1) x (1 << 20) }} print 'ate it all'"


@pytest.mark.root
def test_memory_beyond_the_limit_is_out_of_memory(bench, limits):
    run = bench.perl(EAT.format(mib=200), limits=replace(limits, memory_bytes=64 * MIB))
    assert (run.kind, run.result.signal) == ("out_of_memory", "SIGKILL")
    assert "ate it all" not in run.output
    assert run.result.resources.memory_bytes <= 64 * MIB


@pytest.mark.root
def test_memory_of_the_whole_job_counts(bench, limits):
    script = "for my $n (1 .. 6) { next if fork; " + EAT.format(mib=25) + "; sleep 5; exit } 1 while wait != -1; exit 1"
    assert bench.perl(script, limits=replace(limits, memory_bytes=96 * MIB)).kind == "out_of_memory"


# Up to 250 pairs of 208 KiB, and as many pipes of 64 KiB: memory of the kernel, which is in no process.
BUFFERS = """my ($part, @held) = 'x' x 65536; use IO::Handle;
    for (1 .. 250) { socketpair my $a, my $b, 1, 1, 0 or last; pipe my $c, my $d or last; push @held, $a, $b, $c, $d;
        for my $end ($a, $d) { $end->blocking(0); 1 while syswrite $end, $part } } print 'filled ', scalar @held"""


@pytest.mark.root
def test_buffers_of_sockets_and_pipes_count_as_memory(bench, limits):
    run = bench.perl(BUFFERS, limits=replace(limits, memory_bytes=64 * MIB))
    assert (run.kind, run.output) == ("out_of_memory", "")


@pytest.mark.root
def test_a_child_that_ran_out_of_memory_is_no_failure_of_a_command_that_succeeds(bench, limits):
    script = "if (!fork) { " + EAT.format(mib=200) + "; exit } wait; print 'went on'; exit 0"
    run = bench.perl(script, limits=replace(limits, memory_bytes=64 * MIB))
    assert (run.kind, run.result.exit_code, run.output) == ("exited", 0, "went on")
    assert run.result.memory_kills == 1


def test_memory_is_limited_without_control_groups_too(bench, limits, monkeypatch):
    monkeypatch.setattr(bench.engine, "hierarchy", None)
    run = bench.perl(EAT.format(mib=200), limits=replace(limits, memory_bytes=64 * MIB))
    assert "ate it all" not in run.output
    assert run.kind in {"exited", "signaled", "out_of_memory"}
    assert run.result.exit_code != 0


def test_memory_of_the_whole_job_is_watched_without_control_groups(bench, limits, monkeypatch):
    monkeypatch.setattr(bench.engine, "hierarchy", None)
    script = "for my $n (1 .. 6) { next if fork; " + EAT.format(mib=40) + "; sleep 9; exit } 1 while wait != -1; exit 1"
    started = time.monotonic()
    assert bench.perl(script, limits=replace(limits, memory_bytes=96 * MIB)).kind == "out_of_memory"
    assert time.monotonic() - started < 18


BOMB = "sub more { while (1) { my $p = fork; $failed++ if !defined $p; last if ($failed // 0) > 50 } } more(); exit 1"


@pytest.mark.root
def test_a_fork_bomb_is_too_many_processes(bench, limits):
    run = bench.perl(BOMB, limits=replace(limits, processes=30))
    assert (run.kind, run.result.exit_code) == ("too_many_processes", 1)
    assert run.result.resources.processes <= 30


@pytest.mark.root
def test_a_refused_fork_is_no_failure_of_a_command_that_succeeds(bench, limits):
    run = bench.perl("my @p; while (defined(my $p = fork)) { $p or sleep 9, exit; push @p, $p } kill 9, @p; print scalar @p",
                     limits=replace(limits, processes=20))  # fmt: skip
    assert (run.kind, run.output) == ("exited", "19")


def test_a_fork_bomb_that_never_ends_dies_at_the_deadline(bench, limits):
    run = bench.sh(
        "bomb() { bomb | bomb & }; bomb; sleep 30", limits=replace(limits, processes=40), timeout_seconds=1.0
    )
    assert run.kind == "timeout"


def test_processes_are_limited_without_control_groups_too(bench, limits, monkeypatch):
    monkeypatch.setattr(bench.engine, "hierarchy", None)
    run = bench.perl("my $n = 0; while (defined(my $p = fork)) { $p or sleep 9, exit; last if ++$n > 200 } print $n",
                     limits=replace(limits, processes=20))  # fmt: skip
    assert 15 <= int(run.output) <= 30, "the uid may have other processes, which come and go"


@pytest.mark.root
def test_the_processor_is_shared_out(bench, limits):
    script = "my $n = 0; my $end = (times)[0] + 0.2; while ((times)[0] < $end) { $n++ } print 'done'"
    started = time.monotonic()
    run = bench.perl(script, limits=replace(limits, cpu_percent=20))
    assert run.output == "done"
    assert time.monotonic() - started > 0.7, "0.2 s of work at a fifth of a processor"
    assert run.result.resources.cpu_seconds > 0.15


def test_a_file_beyond_the_limit_is_a_full_disk(bench, limits):
    run = bench.perl("open my $f, '>', 'big'; while (1) { syswrite $f, 'x' x 1048576 or last }", limits=limits)
    assert (run.kind, run.result.signal) == ("disk_full", "SIGXFSZ")
    assert (run.workspace / "big").stat().st_size == limits.disk_bytes


def test_many_files_beyond_the_limit_are_a_full_disk(bench, limits):
    script = "for my $n (1 .. 30) { open my $f, '>', \"file$n\"; syswrite $f, 'x' x (1 << 20) for 1 .. 4 } sleep 20"
    started = time.monotonic()
    run = bench.perl(script, limits=limits)
    assert run.kind == "disk_full"
    assert run.result.resources.disk_bytes > limits.disk_bytes
    assert time.monotonic() - started < 18


def test_files_without_a_name_count(bench, limits):
    script = "for my $n (1 .. 30) { open my $f, '>', 'x'; syswrite $f, 'x' x (1 << 20) for 1 .. 4; unlink 'x'; push @f, $f } sleep 20"
    assert bench.perl(script, limits=limits).kind == "disk_full"


@pytest.mark.parametrize("place", ["$ENV{HOME}", "$ENV{TMPDIR}"])
def test_home_and_temporary_files_count(bench, limits, place):
    script = (
        f"for my $n (1 .. 30) {{ open my $f, '>', \"{place}/$n\"; syswrite $f, 'x' x (1 << 20) for 1 .. 4 }} sleep 20"
    )
    assert bench.perl(script, limits=limits).kind == "disk_full"


def test_empty_files_beyond_reason_are_a_full_disk(bench, limits):
    script = "mkdir 'd'; for my $n (1 .. 3000) { open my $f, '>', \"d/$n\" } sleep 20"
    assert bench.perl(script, limits=replace(limits, disk_bytes=4 * MIB)).kind == "disk_full"


def test_nothing_hides_below_the_longest_path(bench, limits, monkeypatch):
    monkeypatch.setattr(bench.engine, "volumes", None)  # where there are some, the kernel counts
    script = "for (1 .. 30) { mkdir 'd' x 200 or die; chdir 'd' x 200 } open my $f, '>', 'deep'; sleep 20"
    run = bench.perl(script, limits=limits)
    assert run.kind == "disk_full"
    assert disk.remove_tree(run.workspace)


def test_a_job_s_excess_is_its_own(bench, limits):
    ends = {}

    def run(slot, script, **details):
        ends[slot] = bench.perl(script, slot=slot, **details)

    greedy = threading.Thread(target=run, args=(7, BOMB), kwargs={"limits": replace(limits, processes=30)})
    modest = threading.Thread(
        target=run, args=(8, "for (1 .. 50) { my $p = fork // die; $p or exit; wait } print 'fine'")
    )
    for thread in (greedy, modest):
        thread.start()
    for thread in (greedy, modest):
        thread.join()
    assert ends[8].output == "fine"


def test_a_flood_of_output_is_drained(bench, limits):
    run = bench.sh("head -c 100000000 /dev/zero; exit 5", limits=limits)
    assert (run.kind, run.result.exit_code) == ("exited", 5)
    assert run.result.output_bytes == len(run.output) == 100_000_000


def test_a_flood_in_the_trace_is_drained_and_cut_at_a_line(bench, limits):
    run = bench.perl(
        "for (1 .. 12000) { open my $f, '<', '/etc/passwd' } print 'end'", limits=replace(limits, trace_bytes=100_000)
    )
    assert (run.kind, run.output) == ("exited", "end")
    assert run.result.trace_truncated
    assert run.result.trace_bytes > 1_000_000
    assert 99_000 < len(run.trace) <= 100_000
    assert run.trace.endswith("\n")


def test_the_meter_looks_once_however_short_the_run(bench):
    assert bench.sh("echo data > file").result.resources.disk_bytes >= 4096


def pause_after_a_walk_of(seconds, gauge, monkeypatch):
    """Seconds until the next walk, by a clock of the test's own."""
    clock = [1000.0]

    def walk(*_):
        clock[0] += seconds
        return disk.DiskUse()

    monkeypatch.setattr(disk, "tree_use", walk)
    monkeypatch.setattr(resource_monitor, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    gauge.measure(None, lambda: False)
    return gauge._due - clock[0]


def test_a_quick_walk_takes_at_most_a_tenth_of_the_time(tmp_path, limits, monkeypatch):
    pause = pause_after_a_walk_of(0.05, TreeGauge(limits, [tmp_path], list), monkeypatch)
    assert 0.1 * (0.05 + pause) + 1e-9 >= 0.05


def test_the_pause_between_two_walks_is_at_most_a_second(tmp_path, limits, monkeypatch):
    assert pause_after_a_walk_of(0.5, TreeGauge(limits, [tmp_path], list), monkeypatch) <= 1


@pytest.fixture
def without_attacks(monkeypatch):
    """Leave the jobs of the self-test out of a check, which other tests run: what it calls soft does not follow from them."""
    monkeypatch.setattr(self_test, "run_checks", lambda *_: ())


def test_soft_limits_are_named(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "hierarchy", None)
    monkeypatch.setattr(bench.engine, "volumes", None)
    monkeypatch.setattr(bench.engine, "use_volumes", False)
    words = " ".join(bench.engine.check().soft)
    assert all(name in words for name in ("disk:", "memory:", "processes:", "cpu:"))


@pytest.mark.root
@pytest.mark.usefixtures("without_attacks")
def test_no_limit_is_soft_for_root_and_the_disk_without_volumes(bench, checked_engines, monkeypatch):
    assert checked_engines[bench.engine.name][1].soft == bench.engine.check().soft == ()
    monkeypatch.setattr(bench.engine, "volumes", None)
    monkeypatch.setattr(bench.engine, "use_volumes", False)
    (words,) = bench.engine.check().soft
    assert words.startswith("disk: ")
    assert words.endswith("(no volumes: switched off)")


def test_a_hierarchy_that_refuses_a_limit_refuses_the_job(bench, monkeypatch, tmp_path):
    (tmp_path / "closed").write_text("no directory")
    monkeypatch.setattr(
        bench.engine, "hierarchy", Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), tmp_path / "closed"))
    )
    spec = bench.spec("true")
    with pytest.raises(EngineUnavailable, match="control group"):
        bench.engine.run(spec, output=bytes, trace=bytes, stop=StopSignal())
    assert not spec.workspace.with_name(spec.workspace.name + ".private").exists()


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_worker_s_descriptors_are_given_back(bench):
    bench.sh("true")
    before = open_descriptors()
    for _ in range(3):
        bench.sh("true")
        bench.run("no-such-command")
    assert open_descriptors() == before


def test_the_worker_s_threads_end(bench):
    bench.sh("true")
    before = threading.active_count()
    bench.sh("sleep 0.1")
    assert threading.active_count() == before
