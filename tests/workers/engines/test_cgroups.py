"""Control groups: version 1 of the kernel, and version 2 as a tree of files with the same names."""

import os
import subprocess
from pathlib import Path

import pytest

from workers.engines.contract import EngineUnavailable, RunLimits
from workers.engines.limits import cgroups
from workers.engines.limits.cgroups import FAMILY, ControlGroup, Hierarchy

LIMITS = RunLimits(memory_bytes=64 << 20, processes=10, cpu_percent=150)


def mountinfo(tmp_path, *lines):
    path = tmp_path / "mountinfo"
    path.write_text("\n".join(lines) + "\n")
    return path


def version_2(tmp_path, *, controllers="cpu memory pids io", subtree=""):
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.subtree_control").write_text(subtree)
    (root / "cgroup.procs").write_text("1\n2\n")
    return root, mountinfo(tmp_path, f"30 20 0:25 / {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")


def test_version_1_is_found_by_its_controllers(tmp_path):
    lines = [
        f"3{n} 31 0:3{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("memory", "pids", "cpu,cpuacct"))
    ]
    found = cgroups.find(mountinfo(tmp_path, "22 1 0:20 / / rw - ext4 /dev/vda rw", *lines), writable=lambda _: True)
    assert found.version == 1
    assert found.parents["memory"] == Path("/sys/fs/cgroup/memory")
    assert found.parents["cpu"] == found.parents["cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct")


def test_half_a_hierarchy_is_none(tmp_path):
    line = "33 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    assert cgroups.find(mountinfo(tmp_path, line), writable=lambda _: True) is None


def test_what_cannot_be_written_is_none(tmp_path):
    _, info = version_2(tmp_path)
    assert cgroups.find(info, writable=lambda _: False) is None
    assert not cgroups._can_make_groups(tmp_path / "nowhere")


def test_version_2_hands_the_limits_down(tmp_path):
    root, info = version_2(tmp_path)
    (root / FAMILY).mkdir()
    (root / FAMILY / "cgroup.subtree_control").write_text("")
    found = cgroups.find(info)
    assert found == Hierarchy(2, dict.fromkeys(cgroups.NEEDED, root))
    for place in (root, root / FAMILY):
        assert (place / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_version_2_without_a_controller_is_none(tmp_path):
    _, info = version_2(tmp_path, controllers="cpu io")
    assert cgroups.find(info) is None


def test_version_2_steps_aside_when_it_is_alone(tmp_path, monkeypatch):
    root, info = version_2(tmp_path)
    (root / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (root / FAMILY).mkdir()
    tried = []

    def switch_on(group):
        tried.append(group)
        return len(tried) != 1  # busy, as long as a process is in the group

    monkeypatch.setattr(cgroups, "_switch_on", switch_on)
    assert cgroups.find(info).version == 2
    assert (root / f"{FAMILY}-worker" / "cgroup.procs").read_text() == str(os.getpid())
    assert tried == [root, root, root / FAMILY]


def test_version_2_does_not_move_others(tmp_path, monkeypatch):
    root, info = version_2(tmp_path)
    monkeypatch.setattr(cgroups, "_switch_on", lambda _: False)
    assert cgroups.find(info) is None
    assert not (root / f"{FAMILY}-worker").exists()


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Makes its files as the kernel does, when the directory is made."""
    place = tmp_path / FAMILY / "uid-1"
    mkdir = Path.mkdir

    def mkdir_with_files(path, *given, **named):
        mkdir(path, *given, **named)
        if path == place:
            (path / "memory.swap.max").write_text("max")

    monkeypatch.setattr(Path, "mkdir", mkdir_with_files)
    return ControlGroup(2, dict.fromkeys(cgroups.NEEDED, place), extra=3)


def test_version_2_has_all_limits_in_one_place(group):
    group.make(LIMITS)
    (place,) = group.paths
    written = {path.name: path.read_text() for path in place.iterdir()}
    assert written == {
        "memory.max": str(64 << 20), "memory.swap.max": "0", "pids.max": "13", "cpu.max": "150000 100000",
    }  # fmt: skip
    assert group.entrances() == [place / "cgroup.procs"]


def test_version_2_tells_what_was_used(group):
    (place,) = group.paths
    group.make(LIMITS)
    (place / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (place / "memory.peak").write_text("1234\n")
    (place / "pids.events").write_text("max 7\n")
    (place / "pids.peak").write_text("9\n")
    (place / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    usage = group.usage()
    assert (usage.out_of_memory_kills, usage.refused_forks, usage.memory_peak) == (2, 7, 1234)
    assert (usage.processes_peak, usage.cpu_seconds) == (6, 2.5)


def test_what_an_older_kernel_does_not_count_is_unknown(group):
    usage = group.usage()
    assert (usage.out_of_memory_kills, usage.refused_forks) == (0, 0)
    assert (usage.memory_peak, usage.processes_peak, usage.cpu_seconds) == (None, None, None)


def test_version_2_is_empty_when_the_kernel_says_so(group):
    (place,) = group.paths
    group.make(LIMITS)
    assert not group.is_empty()  # no file
    for populated in (1, 0):
        (place / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
        assert group.is_empty() is not bool(populated)


def test_version_1_is_empty_when_no_controller_has_a_task(tmp_path):
    group = ControlGroup(1, {name: tmp_path / name for name in cgroups.NEEDED})
    for place in group.paths:
        place.mkdir()
        assert not group.is_empty()  # a file is missing
        (place / "tasks").write_text("")
    assert group.is_empty()
    (group.paths[-1] / "tasks").write_text("0\n")  # a process of another pid namespace
    assert not group.is_empty()


def test_a_limit_that_cannot_be_written_is_no_job(tmp_path):
    (tmp_path / "file").write_text("")
    group = Hierarchy(2, dict.fromkeys(cgroups.NEEDED, tmp_path / "file")).group(1, extra=0)
    with pytest.raises(EngineUnavailable, match="control group"):
        group.make(LIMITS)


def test_every_group_has_a_name_of_its_own(tmp_path):
    hierarchy = Hierarchy(2, dict.fromkeys(cgroups.NEEDED, tmp_path))
    names = {hierarchy.group(61000, extra=0).paths[0].name for _ in range(100)}
    assert len(names) == 100
    assert all(cgroups._GROUP_NAME.fullmatch(name)[1] == "61000" for name in names)


@pytest.fixture
def tree(tmp_path):
    """A hierarchy of version 1 in an ordinary directory, which can be locked like the kernel's."""
    return Hierarchy(1, {name: tmp_path / name for name in cgroups.NEEDED})


def _directories(tree, name):
    made = [parent / FAMILY / name for parent in tree.parents.values()]
    for place in made:
        place.mkdir(parents=True)
    return made


def test_groups_of_killed_workers_are_removed_and_no_others(tree, monkeypatch):
    monkeypatch.setattr(ControlGroup, "kill", lambda _: True)  # it would make files that only the kernel removes
    abandoned = _directories(tree, "uid-7-0123abcd")
    half_removed = _directories(tree, "uid-7-1111abcd")
    half_removed[0].rmdir()
    foreign = [*_directories(tree, "uid-7"), *_directories(tree, "something")]
    in_use = _directories(tree, "uid-7-ffffffff")
    with tree._named("uid-7-ffffffff", 0).locked():
        tree.remove_abandoned({7})
    assert not any(place.exists() for place in [*abandoned, *half_removed])
    assert all(place.exists() for place in [*foreign, *in_use])


def test_a_group_of_another_uid_is_removed_only_when_it_is_empty(tree, monkeypatch):
    def kill(group):
        raise AssertionError(group)

    monkeypatch.setattr(ControlGroup, "kill", kill)
    empty = _directories(tree, "uid-8-0123abcd")
    full = _directories(tree, "uid-9-0123abcd")
    for place in full:
        (place / "inside").mkdir()  # a directory with an entry cannot be removed, as a group with a process
    tree.remove_abandoned({7})
    assert not any(place.exists() for place in empty)
    assert all(place.exists() for place in full)


def test_a_process_of_another_pid_namespace_is_not_signalled(group):
    """Version 2 lists it as 0, and a signal to 0 is for our own process group."""
    group.paths[0].mkdir(parents=True)
    group.entrances()[0].write_text(f"0\n{os.getpid()}\n0\n")
    assert group.pids() == [os.getpid()]


@pytest.fixture
def real():
    hierarchy = cgroups.find()
    assert hierarchy is not None
    group = hierarchy.group(os.getpid(), extra=0)
    group.make(LIMITS)
    yield group
    group.kill()
    group.remove()


@pytest.mark.root
def test_a_real_group_holds_kills_and_goes(real):
    script = 'for f in "$@"; do echo $$ > "$f"; done; sleep 60 & setsid sleep 60 & wait'
    with subprocess.Popen(["/bin/sh", "-c", script, "sh", *map(str, real.entrances())]) as inside:
        while len(real.pids()) < 3:
            assert inside.poll() is None
        assert inside.pid in real.pids()
        assert real.kill()
        assert inside.wait(5) != 0
    assert real.pids() == []
    assert real.usage().processes_peak in (None, 3, 4)
    real.remove()
    assert not any(place.exists() for place in real.paths)
