"""A report that counts repeated calls equals one that parses every line."""

import json
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.traced import METADATA, ROOT, line, recorded, result, spec, trace
from workers.engines.contract import MountPoints
from workers.engines.sandbox.command import STRACE_OPTIONS
from workers.report import aggregates, processes, repeated_calls
from workers.report.report import RunReport, encoded

NAMES = ("/job/a.h", "a.h", "/usr/include/stdio.h", "../x", "/home/job/.npmrc", "/etc/shadow", "/proc/1/environ", "/", "",
         "/job/.git/hooks/pre-commit")  # fmt: skip
DIRECTORIES = ("AT_FDCWD</job>", "AT_FDCWD</home/job>", "AT_FDCWD", "AT_FDCWD</job>(deleted)", "AT_FDCWD<x>", "4</usr>")
FLAGS = (
    "O_RDONLY",
    "O_RDONLY|O_CLOEXEC",
    "O_WRONLY|O_CREAT|O_TRUNC, 0644",
    "O_RDWR|O_CREAT, 04755",
    "O_PATH",
    "O_RDONLY|O_DIRECTORY",
)
RESULTS = (
    "3</job/a.h>",
    "3",
    "-1 ENOENT (No such file or directory)",
    "-1 EACCES (Permission denied)",
    "-1 EROFS (x)",
    "?",
    "garbage",
)
OPENS = st.builds(
    lambda directory, name, flags, result: f'openat({directory}, "{name}", {flags}) = {result}',
    st.sampled_from(DIRECTORIES), st.sampled_from(NAMES), st.sampled_from(FLAGS), st.sampled_from(RESULTS),
)  # fmt: skip
OTHERS = st.sampled_from(
    [
        'execve("/usr/bin/npm", ["npm"], 0x1 /* 1 var */) = 0', 'execve("/usr/bin/cat", ["cat"], 0x1 /* 1 var */) = 0',
        'execve("/job/npm", ["npm"], 0x1 /* 1 var */) = 0', 'execve("/usr/bin/git", ["git"], 0x1 /* 1 var */) = 0',
        'chdir("/home/job") = 0', 'openat(AT_FDCWD</job>, "b.h", O_RDONLY <unfinished ...>',
        "<... openat resumed>) = 3</job/b.h>", "clone(child_stack=NULL, flags=SIGCHLD) = 501",
        "clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x1}, 88) = 502", "+++ exited with 0 +++", "+++ killed by SIGSYS +++",
        'open("a.h", O_RDONLY) = 3</job/a.h>', 'unlink("a.h") = 0', ' openat(AT_FDCWD</job>, "a.h", O_RDONLY) = 3</job/a.h>',
        'openat(AT_FDCWD</job>, "a.h", O_RDONLY) = 3</job/a.h', "",
    ]
)  # fmt: skip


class FullReport(RunReport):
    """Parses every line."""

    def feed(self, data: bytes) -> None:
        self._digest.update(data)
        self._bytes += len(data)
        for event in self._reader.feed(data):
            self._on_event(event)


def body(report: RunReport, *parts: bytes) -> bytes:
    for part in parts:
        report.feed(part)
    return encoded(report.payload(metadata=METADATA, result=result(), spec=spec()))


def both(*parts: bytes) -> tuple[bytes, bytes]:
    return body(RunReport(MountPoints()), *parts), body(FullReport(MountPoints()), *parts)


@pytest.fixture(autouse=True)
def small_caps(monkeypatch):
    """Short traces reach the caps, too."""
    monkeypatch.setattr(aggregates, "FILES_KEPT", 2)
    monkeypatch.setattr(aggregates, "DETAILS_KEPT", 2)
    monkeypatch.setattr(processes, "MAX_RECORDS", 4)
    monkeypatch.setattr(repeated_calls, "MAX_CALLS", 6)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(OPENS, min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([ROOT, 501, 502, 503, 504, 505]), st.integers(0, 5) | OTHERS), max_size=60),
    st.integers(1, 400),
)
def test_the_report_equals_that_of_the_full_reader(opens, order, size):
    """Few different calls, many times each, in several processes, between calls that change what they mean."""
    lines = [opens[what % len(opens)] if isinstance(what, int) else what for _, what in order]
    data = trace() + b"".join(
        line(call, pid=pid, at=at / 1000) for at, ((pid, _), call) in enumerate(zip(order, lines, strict=True), 1)
    )
    counted, parsed = both(*(data[at : at + size] for at in range(0, len(data), size)))
    assert counted == parsed


@pytest.mark.parametrize("name", ["compiler", "git", "hostile", "npm", "pip"])
def test_recorded_traces_have_equal_reports(name):
    counted, parsed = both(recorded(name), recorded(name))
    assert counted == parsed


def test_a_repeated_call_is_not_parsed(monkeypatch):
    opened = line('openat(AT_FDCWD</job>, "/usr/include/stdio.h", O_RDONLY) = 3</usr/include/stdio.h>')
    report = RunReport(MountPoints())
    report.feed(trace() + opened)
    monkeypatch.setattr(report._reader, "_read", None)
    report.feed(opened * 5)
    payload = report.payload(metadata=METADATA, result=result(), spec=spec())
    assert (payload["files"]["items"][0]["count"], payload["counts"]["trace_lines"]) == (6, 7)


def test_the_program_decides_what_a_repeated_call_means():
    read = 'openat(AT_FDCWD</job>, "/home/job/.npmrc", O_RDONLY) = 3</home/job/.npmrc>'
    data = trace(
        'execve("/usr/bin/npm", ["npm"], 0x1) = 0', read, read, 'execve("/usr/bin/cat", ["cat"], 0x1) = 0', read
    )
    report = RunReport(MountPoints())
    report.feed(data)
    [finding] = report.payload(metadata=METADATA, result=result(), spec=spec())["suspicious_activity"]["items"]
    assert (finding["rule"], finding["count"]) == ("credential_read", 1)


def test_a_file_that_was_left_out_is_counted_anew(monkeypatch):
    """Its rank changed to one that is full. The next use of it finds no aggregate, although the call repeats."""
    monkeypatch.setattr(aggregates, "FILES_KEPT", 1)
    read, denied = (
        f'openat(AT_FDCWD</job>, "{{}}", O_RDONLY) = {end}' for end in ("3", "-1 EACCES (Permission denied)")
    )
    counted, parsed = both(
        trace(denied.format("x"), read.format("a"), read.format("a"), denied.format("a"), read.format("a"))
    )
    assert counted == parsed
    assert {item["path"]: item["count"] for item in json.loads(counted)["files"]["items"]} == {"./x": 1, "./a": 1}


def test_remembered_calls_are_bounded():
    report = RunReport(MountPoints())
    report.feed(trace())
    for number in range(50):
        report.feed(line(f'openat(AT_FDCWD</job>, "/job/{number}", O_RDONLY) = 3</job/{number}>'))
        remembered = sum(map(len, report._repeated._by_program.values()))
        assert remembered == report._repeated._size <= repeated_calls.MAX_CALLS
    assert report._repeated.find(report._extractor.processes.root.program, b"x" * 9) is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles C")
def test_a_traced_compile_has_an_equal_report(tmp_path, monkeypatch):
    monkeypatch.undo()  # the product's own caps
    job, out = tmp_path / "job", tmp_path / "trace"
    job.mkdir()
    for number in range(4):
        source = f"#include <stdio.h>\n#include <stdlib.h>\nint f{number}(void) {{ return {number}; }}\n"
        (job / f"a{number}.c").write_text(source)
    build = ["sh", "-c", "for f in *.c; do gcc -c $f || exit 1; done"]
    command = ["strace", *STRACE_OPTIONS, "-o", str(out), "--", *build]
    subprocess.run(command, cwd=job, env={"PATH": "/usr/bin:/bin"}, timeout=300, check=True)
    counted, parsed = both(out.read_bytes())
    assert counted == parsed
    assert out.read_bytes().count(b"/stdio.h") >= 4
