"""The run payload: the contract's shape, true totals beside capped lists, the same bytes for the same trace, bounded."""

import hashlib
import json
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engines.test_strace import HOSTILE
from tests.workers.traced import METADATA, fired, line, payload_of, recorded, result, spec, trace
from workers.engines.contract import EgressPolicy, MountPoints, NetworkRecord, ResourceUsage, RunLimits
from workers.report import payload as body
from workers.report import processes, repeated_calls
from workers.report.report import RunReport, encoded


def opened(path: str, at: float = 0.0) -> bytes:
    return line(f'openat(AT_FDCWD</job>, "{path}", O_RDONLY) = 3<{path}>', at=at)


def test_it_has_what_the_contract_asks_for():
    payload = payload_of(recorded("hostile"), exit_code=5)
    assert payload["schema_version"] == "run.v1"
    assert {key: payload["metadata"][key] for key in METADATA} == METADATA
    assert payload["metadata"]["sandbox"] == {
        "tool_version": "6.1", "allow_network": False, "allow_exec": True, "timeout_seconds": 300.0, "trace_only": False,
        "enforced_layers": ["user_ns", "tracer_outside"],
    }  # fmt: skip
    assert payload["metadata"]["started_at"] == "2026-11-18T11:06:40.000Z"
    assert payload["metadata"]["finished_at"] == "2026-11-18T11:06:42.500Z"
    assert payload["outcome"] == {"kind": "exited", "exit_code": 5, "signal": None, "cause": None}
    assert payload["summary"]["duration_ms"] == 2500
    assert payload["counts"]["bad_lines"] == 0
    assert payload["trace"]["sha256"] == hashlib.sha256(recorded("hostile")).hexdigest()
    assert payload["trace"]["confidence"] == "advisory"
    for name in ("processes", "files", "network_attempts", "suspicious_activity"):
        assert set(payload[name]) == {"items", "total", "truncated"}
        assert payload[name]["total"] == len(payload[name]["items"])


def test_the_digest_is_of_the_canonical_form_without_it():
    payload = payload_of(recorded("hostile"))
    rest = {key: value for key, value in payload.items() if key != "payload_sha256"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert payload["payload_sha256"] == hashlib.sha256(canonical).hexdigest()


def test_the_same_trace_gives_the_same_bytes_however_it_is_fed():
    data = recorded("hostile")
    report = RunReport(MountPoints())
    shuffled = random.Random(7)
    at = 0
    while at < len(data):
        step = shuffled.randrange(1, 900)
        report.feed(data[at : at + step])
        at += step
    assert encoded(report.payload(metadata=METADATA, result=result(), spec=spec())) == encoded(payload_of(data))


def test_paths_are_short_and_the_same_on_every_worker():
    data = trace() + opened("/job/src/a.py") + opened("/home/job/.config/x") + opened("/job") + opened("/jobs/x")
    paths = [item["path"] for item in payload_of(data)["files"]["items"]]
    assert paths == ["./", "./src/a.py", "/jobs/x", "~/.config/x"]


def test_other_places_are_shortened_as_the_engine_names_them():
    report = RunReport(MountPoints("/var/slot/1/ws", "/var/slot/1/home", ("/var/slot/1/tmp",)))
    report.feed(trace() + opened("/var/slot/1/ws/a") + opened("/var/slot/1/home/.ssh/id_rsa"))
    payload = report.payload(metadata=METADATA, result=result(), spec=spec())
    assert [item["path"] for item in payload["files"]["items"]] == ["~/.ssh/id_rsa", "./a"]


def test_files_are_ordered_by_what_matters():
    data = trace() + opened("/usr/a") + line('open("/usr/missing", O_RDONLY) = -1 ENOENT (x)')
    data += line('openat(AT_FDCWD</job>, "b", O_WRONLY|O_CREAT, 0644) = 3</job/b>')
    data += line('open("/etc/x", O_RDONLY) = -1 EACCES (x)') + opened("/job/.env")
    items = payload_of(data)["files"]["items"]
    assert [item["path"] for item in items] == ["./.env", "/etc/x", "./b", "/usr/a", "/usr/missing"]
    assert items[0]["sensitive"]
    assert (items[1]["denied"], items[1]["failed"]) == (1, 1)
    assert items[2]["ops"] == ["write", "create"]


def test_what_is_read_then_written_moves_up_and_keeps_its_count():
    data = trace() + opened("/job/a") + line('open("/job/a", O_RDWR) = 3</job/a>') + line('unlink("/job/a") = 0')
    [item] = payload_of(data)["files"]["items"]
    assert (item["ops"], item["count"]) == (["read", "write", "delete"], 3)


def test_network_attempts_of_the_trace_and_of_the_proxy_stand_in_one_list():
    connects = (
        'connect(3<socket:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("203.0.113.7")}, 16) = '
    )
    data = trace(connects + "-1 ENETUNREACH (x)", connects + "-1 EINPROGRESS (x)")
    record = NetworkRecord("packages.example.test", 443, "allowed", "203.0.113.9", 10, 2000)
    payload = payload_of(data, network=(record, record), egress=EgressPolicy(("packages.example.test",)))
    direct, proxied = sorted(payload["network_attempts"]["items"], key=lambda item: item["kind"])
    assert direct == {
        "kind": "contact", "addr": "203.0.113.7:80", "family": "inet", "port": 80, "name": None, "count": 2,
        "outcome": "in_progress", "errno": 115, "verdict": None, "bytes_sent": None, "bytes_received": None,
    }  # fmt: skip
    assert proxied == {
        "kind": "proxied", "addr": "203.0.113.9:443", "family": "inet", "port": 443, "name": "packages.example.test", "count": 2,
        "outcome": "connected", "errno": None, "verdict": "allowed", "bytes_sent": 20, "bytes_received": 4000,
    }  # fmt: skip
    assert payload["counts"]["network_attempts"] == 2
    assert payload["metadata"]["sandbox"]["allow_network"]


def test_resources_are_peaks_beside_limits():
    peaks = ResourceUsage(memory_bytes=5, processes=3, disk_bytes=None, cpu_seconds=1.5)
    resources = payload_of(trace(), resources=peaks, output_bytes=(16 << 20) + 77)["resources"]
    assert resources["peaks"] == {"memory_bytes": 5, "processes": 3, "disk_bytes": None, "cpu_seconds": 1.5}
    assert resources["limits"]["memory_bytes"] == RunLimits().memory_bytes
    assert resources["limits"]["timeout_seconds"] == 300.0
    assert resources["output"] == {"bytes": (16 << 20) + 77, "truncated": True}


@pytest.mark.parametrize(
    ("end", "last", "expected"),
    [
        ({"exit_code": 3}, "+++ exited with 3 +++", ("exited", 3, None, None)),
        ({"exit_code": 137}, "+++ killed by SIGKILL +++", ("signaled", None, "SIGKILL", None)),
        ({"kind": "signaled", "exit_code": None, "signal": "SIGSEGV"}, "", ("signaled", None, "SIGSEGV", None)),
        ({"kind": "timeout", "exit_code": None, "signal": "SIGKILL"}, "", ("timeout", None, "SIGKILL", None)),
        ({"kind": "timeout", "exit_code": 0}, "+++ exited with 0 +++", ("timeout", 0, None, None)),
        ({"kind": "not_found", "exit_code": 127}, "", ("exec_failed", 127, None, None)),
        (
            {"kind": "out_of_memory", "exit_code": None, "signal": "SIGKILL"},
            "",
            ("signaled", None, "SIGKILL", "out_of_memory"),
        ),
        ({"kind": "disk_full", "exit_code": 1}, "", ("exited", 1, None, "disk_full")),
        ({"exit_code": 0, "trace_truncated": True}, "", ("trace_incomplete", 0, None, None)),
        ({"exit_code": 0, "trace_truncated": True}, "+++ exited with 0 +++", ("exited", 0, None, None)),
    ],
)
def test_outcomes(end, last, expected):
    outcome = payload_of(trace(last) if last else trace(), **end)["outcome"]
    assert (outcome["kind"], outcome["exit_code"], outcome["signal"], outcome["cause"]) == expected


def test_a_promised_trace_that_never_came_is_incomplete():
    assert payload_of(b"")["outcome"]["kind"] == "trace_incomplete"
    assert payload_of(b"", enforced_layers=())["outcome"]["kind"] == "exited"


def test_totals_are_true_where_lists_are_cut():
    data = trace() + b"".join(opened(f"/job/f{number}") for number in range(1_500))
    files = payload_of(data)["files"]
    assert (files["total"], len(files["items"]), files["truncated"]) == (1_500, 500, True)


def test_what_matters_is_not_pushed_out_by_a_flood():
    flood = b"".join(opened(f"/job/f{number:05}") for number in range(3_000))
    late = opened("/job/zzz/.env") + line('open("/job/zz", O_WRONLY|O_CREAT, 0644) = 3</job/zz>')
    paths = [item["path"] for item in payload_of(trace() + flood + late)["files"]["items"]]
    assert paths[:2] == ["./zzz/.env", "./zz"]


def test_no_rule_pushes_out_another():
    flood = b"".join(opened(f"/job/{number}/.env") for number in range(400))
    payload = payload_of(trace() + flood + line("kill(-1, SIGKILL) = 0"))
    found = payload["suspicious_activity"]
    assert set(fired(payload)) == {"credential_read", "kill_outside"}
    assert (found["total"], len(found["items"]), found["truncated"]) == (401, 100, True)


def test_processes_that_broke_a_rule_are_kept_of_thousands():
    births = "".join(f"vfork() = {number}\n" for number in range(3, 603)).splitlines()
    data = trace(*births)
    for number in range(600):
        pid = 501 + number
        data += opened("/usr/x").replace(b"500 ", b"%d " % pid, 1) if number != 590 else b""
        data += line('unlink("/etc/hosts") = -1 EROFS (x)', pid=pid) if number == 590 else b""
    processes = payload_of(data)["processes"]
    assert (processes["total"], len(processes["items"])) == (601, 200)
    assert processes["items"][0]["is_root"]
    assert [item["pid"] for item in processes["items"] if item["rules"]] == [501 + 590]


def test_text_from_the_trace_cannot_play_tricks():
    data = trace() + line('open("/job/\\33[2J\\342\\200\\256gpj.exe\\0\\377", O_RDONLY) = -1 ENOENT (x)')
    [item] = payload_of(data)["files"]["items"]
    assert item["path"] == "./\ufffd[2J\ufffdgpj.exe\ufffd\ufffd"


def test_long_strings_are_cut_and_say_so():
    [item] = payload_of(trace() + opened("/job/" + "a" * 4_000))["files"]["items"]
    assert len(item["path"]) == 1024
    assert item["path"].endswith("…")


def test_the_body_stays_under_its_limit_whatever_the_trace_holds(monkeypatch):
    """Names of four-byte characters, the longest that fit, in every list."""
    wide = "\\360\\237\\222\\251" * 1000
    data = trace() + b"".join(opened(f"/job/{number}{wide}") for number in range(600))
    data += b"".join(line(f'unlink("/etc/{number}{wide}") = -1 EROFS (x)') for number in range(100))
    metadata = {**METADATA, "command": ["\x01" * 1024] * 64}
    report = RunReport(MountPoints())
    report.feed(data)
    payload = report.payload(metadata=metadata, result=result(), spec=spec())
    assert len(encoded(payload)) <= body.MAX_BYTES < 1 << 20
    assert payload["files"]["truncated"]
    assert payload["files"]["total"] == 700
    assert payload["files"]["items"]


def _lookup(number: int) -> bytes:
    name = f"\\062{number:05}{'x' * 45}\\4test\\0\\0\\1\\0\\1"
    to = '{sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}'
    return line(f'sendto(3<socket:[{number}]>, "\\22\\64\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0{name}", 70, 0, {to}, 16) = 70')


def _birth(number: int) -> bytes:
    words = ", ".join([f'"{number}{"x" * 900}"'] * 8)
    return line(f"vfork() = {3 + number}") + line(f'execve("/usr/bin/x", [{words}], 0x1) = 0', pid=501 + number)


@pytest.mark.parametrize(
    ("one", "mebibytes"),  # measured: 0.63, 1.43, 0.53, 0.77
    [
        (lambda number: opened(f"/job/{number}/{'x' * 200}"), 1),
        (lambda number: opened(f"/job/{number}/{'x' * 900}/.env"), 2),
        (_lookup, 1),
        (_birth, 1),
    ],
    ids=["files", "findings", "names", "processes"],
)
def test_memory_is_bounded_for_endless_different_things(one, mebibytes, monkeypatch):
    monkeypatch.setattr(processes, "MAX_RECORDS", 300)
    monkeypatch.setattr(repeated_calls, "MAX_CALLS", 300)
    report = RunReport(MountPoints())
    report.feed(trace() + opened("/job/warm"))
    tracemalloc.start()
    try:
        for number in range(4_000):
            report.feed(one(number))
        assert tracemalloc.get_traced_memory()[0] < mebibytes << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=60, deadline=None)
@given(st.lists(HOSTILE | st.sampled_from([recorded("hostile")[:3000], trace(), b"\n"]), max_size=4))
def test_no_trace_raises(parts):
    payload = payload_of(b"".join(parts))
    assert json.loads(encoded(payload)) == payload


CALL = st.builds(
    lambda name, arguments, result: f"{name}({', '.join(arguments)}) = {result}",
    st.sampled_from(["openat", "open", "openat2", "execve", "execveat", "connect", "sendto", "sendmsg", "sendmmsg", "bind", "listen", "clone",
                     "clone3", "vfork", "rename", "linkat", "chmod", "kill", "socket", "chdir", "fchdir", "unshare", "ptrace"]),
    st.lists(st.sampled_from(["3", "AT_FDCWD</job>", "4</usr>", "3<socket:[1]>", "NULL", '"x"', '"/etc/\\377"', '""', "O_RDONLY|O_CREAT", "-1",
                              '["a", "b"]', "{sa_family=AF_INET, sin_port=htons(53)}", "{flags=O_RDWR}", "[{msg_hdr={msg_name=NULL}}]",
                              "flags=CLONE_THREAD", "0x10000000", '"\\22\\64\\1\\0\\0\\1"', "04777"]), max_size=6),
    st.sampled_from(["0", "3", "-1 EPERM (x)", "?", "3</job/x>", "99"]),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), CALL), max_size=40))
def test_no_combination_of_calls_and_arguments_raises(calls):
    payload = payload_of(b"".join(line(call, pid=pid) for pid, call in calls))
    assert payload["counts"]["trace_lines"] == len(calls)
    assert payload["counts"]["bad_lines"] == 0
