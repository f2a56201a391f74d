"""The tree of processes is found, although numbers inside a pid namespace are not those of the trace."""

from tests.workers.traced import METADATA, ROOT, line, payload_of, recorded, result, spec, trace
from workers.engines.contract import MountPoints
from workers.report.report import RunReport

THREAD = "clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x1}, 88) = "


def tree(payload):
    return {item["pid"]: item["parent_pid"] for item in payload["processes"]["items"]}


def born(inside: int) -> str:
    return f"clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f) = {inside}"


def test_children_are_found_by_the_order_of_their_numbers():
    data = (
        trace(born(3), born(4))
        + line('open("/usr/x", O_RDONLY) = 3</usr/x>', pid=522)  # the first line is of the second child
        + line(born(5), pid=522)
        + line('open("/usr/y", O_RDONLY) = 3</usr/y>', pid=540)
        + line('open("/usr/z", O_RDONLY) = 3</usr/z>', pid=521)
    )
    assert tree(payload_of(data)) == {ROOT: None, 521: ROOT, 522: ROOT, 540: 522}


def test_without_a_namespace_the_numbers_are_the_same():
    data = trace(born(700), born(650)) + line("+++ exited with 0 +++", pid=700) + line(born(701), pid=650)
    data += line("+++ exited with 0 +++", pid=701) + line("+++ exited with 0 +++", pid=650)
    assert tree(payload_of(data)) == {ROOT: None, 700: ROOT, 650: ROOT, 701: 650}


def test_a_silent_thread_is_not_taken_for_the_next_process():
    data = (
        trace(THREAD + "3", born(4))
        + line('execve("/usr/bin/true", ["true"], 0x1 /* 3 vars */) = 0', pid=531)
        + line("+++ exited with 0 +++", pid=531)
        + line("+++ exited with 0 +++", pid=530)  # the thread, which appears only at its end
    )
    payload = payload_of(data)
    assert tree(payload) == {ROOT: None, 531: ROOT}
    assert payload["counts"]["processes"] == 2


def test_a_birth_without_a_record_does_not_shift_the_others():
    """A parent killed inside clone never prints what it returned."""
    data = (
        trace(born(3), "clone(child_stack=NULL, flags=SIGCHLD) = ?", born(5))
        + line("+++ exited with 0 +++", pid=522)
        + line(born(6), pid=521)
        + line("+++ exited with 0 +++", pid=524)
        + line("+++ exited with 0 +++", pid=523)
    )
    found = tree(payload_of(data))
    assert (found[521], found[523], found[524]) == (ROOT, ROOT, 521)


def test_who_executes_a_program_is_no_thread():
    """A silent thread, and a child whose parent's vfork did not return before the trace was cut."""
    data = trace(THREAD + "3", "vfork( <unfinished ...>")
    data += line('execve("/usr/bin/true", ["true"], 0x1 /* 3 vars */) = 0', pid=502)
    assert tree(payload_of(data)) == {ROOT: None, 502: ROOT}


def test_numbers_that_start_again_from_below_keep_their_order():
    """The machine's largest number is reached while the job runs."""
    data = trace(born(3), born(4), born(5))
    data += line("+++ exited with 0 +++", pid=32_767) + line(born(6), pid=311) + line("+++ exited with 0 +++", pid=312)
    data += line("+++ exited with 0 +++", pid=300) + line("+++ exited with 0 +++", pid=311)
    assert tree(payload_of(data)) == {ROOT: None, 32_767: ROOT, 300: ROOT, 311: ROOT, 312: 311}


def test_a_small_number_of_the_root_does_not_confuse_those_inside():
    """More processes inside than the root's own number outside."""
    births = "".join(line(born(number)).decode() for number in range(3, 703)).encode()
    ends = b"".join(line("+++ exited with 0 +++", pid=ROOT + 1 + place) for place in range(699))
    data = trace() + births + ends + line(born(703), pid=1_200) + line("+++ exited with 0 +++", pid=1_201)
    report = RunReport(MountPoints())
    report.feed(data)
    report.payload(metadata=METADATA, result=result(), spec=spec())
    parents = {process.pid: process.parent and process.parent.pid for process in report._extractor.processes.settled()}
    assert parents.pop(1_201) == 1_200
    assert set(parents.values()) == {None, ROOT}


def test_threads_are_folded_into_their_process():
    data = (
        trace(THREAD + "3")
        + line('openat(AT_FDCWD</job>, "/home/job/.ssh/id_rsa", O_RDONLY) = -1 ENOENT (No such file)', pid=501)
        + line("+++ exited with 0 +++", pid=501)
    )
    [root] = payload_of(data)["processes"]["items"]
    assert root["is_root"]
    assert root["rules"] == ["credential_read"]


def test_a_process_has_its_programs_its_times_and_its_end():
    data = (
        trace("vfork( <unfinished ...>")
        + line('execve("/usr/bin/make", ["make", "-j2"], 0x1 /* 3 vars */) = 0', pid=501, at=0.25)
        + line("<... vfork resumed>) = 3")
        + line("+++ exited with 2 +++", pid=501, at=1.5)
        + line("+++ killed by SIGKILL +++", at=2)
    )
    root, child = payload_of(data)["processes"]["items"]
    assert (root["is_root"], root["parent_pid"], root["signal"], root["exit_code"]) == (True, None, "SIGKILL", None)
    assert child["exec_paths"] == ["/usr/bin/make"]
    assert child["command"] == "make -j2"
    assert (child["first_seen"][-13:], child["ended_at"][-13:]) == ("11:06:40.250Z", "11:06:41.500Z")
    assert (child["exit_code"], child["signal"], child["exec_count"]) == (2, None, 1)


def test_a_number_used_again_is_another_process():
    data = trace(born(3)) + line("+++ exited with 1 +++", pid=501) + line(born(4))
    data += line("+++ exited with 2 +++", pid=501)
    payload = payload_of(data)
    assert [item["exit_code"] for item in payload["processes"]["items"] if item["pid"] == 501] == [1, 2]


def test_the_recorded_tree_is_right():
    """Checked by hand against the script: every command is a child of the shell, the sleeper of its subshell."""
    payload = payload_of(recorded("hostile"))
    items = payload["processes"]["items"]
    root = items[0]["pid"]
    parents = {item["command"].split(" ")[0] or "(fork)": item["parent_pid"] for item in items}
    evil = next(item["pid"] for item in items if "./evil" in item["exec_paths"])
    assert items[0]["command"] == "sh install.sh"
    assert {parents[name] for name in ("cat", "python3", "mkdir", "cp", "/tmp/t", "chmod")} == {root}
    subshell = next(item for item in items if item["parent_pid"] == root and not item["command"])
    assert parents["sleep"] == subshell["pid"]
    assert subshell["exit_code"] == 7
    assert [item["exec_paths"] for item in items if item["parent_pid"] == evil and item["exec_paths"]] == [
        ["/memfd:evil"]
    ]
    assert next(item for item in items if item["pid"] == evil)["exec_count"] == 2, "a thread's execve is its process's"
    assert payload["counts"]["processes"] == payload["processes"]["total"] == len(items)


def test_npm_is_one_process_however_many_threads():
    assert [item["exec_paths"] for item in payload_of(recorded("npm"))["processes"]["items"]] == [
        ["/usr/bin/npm", "/usr/bin/node"]
    ]
