"""The reader against the strace that is installed, with the options that engines use; loopback and own files only."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.traced import METADATA, result, spec
from workers.engines.contract import MountPoints
from workers.engines.sandbox.command import STRACE_OPTIONS
from workers.report.report import RunReport

SCRIPT = """
import os, socket, subprocess, threading
os.mkdir("made"); open("made/a>b\\n", "w").close(); os.rename("made/a>b\\n", "made/c"); os.unlink("made/c")
threads = [threading.Thread(target=lambda: open("/etc/passwd").read()) for _ in range(5)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
subprocess.run(["/bin/sh", "-c", "exit 3"]); subprocess.run(["/bin/sh", "-c", "kill -9 $$"])
question = b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4evil\\4test\\0\\0\\1\\0\\1"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.bind(("127.0.0.1", 0)); udp.connect(("127.0.0.1", 53)); udp.send(question)
with socket.socket() as server:
    server.bind(("127.0.0.1", 0)); server.listen()
for path in ".ssh/id_rsa", ".env":
    try: open(path)
    except OSError: pass
os._exit(7)
"""


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    job, out = folder / "job", folder / "trace"
    job.mkdir()
    command = ["strace", *STRACE_OPTIONS, "-o", str(out), "--", sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=job, env={"PATH": "/usr/bin:/bin"}, timeout=60, check=False)
    assert done.returncode == 7
    report = RunReport(MountPoints(str(job), str(folder / "home"), (str(folder / "tmp"),)))
    report.feed(out.read_bytes())
    return report.payload(metadata=METADATA, result=result(exit_code=7), spec=spec())


def test_every_line_is_understood(payload):
    assert payload["counts"]["trace_lines"] > 50
    assert payload["counts"]["bad_lines"] == 0


def test_the_tree_is_the_one_that_was(payload):
    root, *children = payload["processes"]["items"]
    assert (root["exit_code"], Path(root["exec_paths"][0]).name) == (7, Path(sys.executable).name)
    assert [(child["parent_pid"], child["exit_code"], child["signal"]) for child in children] == [
        (root["pid"], 3, None),
        (root["pid"], None, "SIGKILL"),
    ]


def test_files_names_and_rules_are_found(payload):
    files = {item["path"]: item for item in payload["files"]["items"]}
    assert files["./made"]["ops"] == ["create"]
    assert files["./made/a>b\ufffd"]["ops"] == ["write", "create", "rename"]
    assert files["./made/c"]["ops"] == ["delete", "rename"]
    assert [item["name"] for item in payload["network_attempts"]["items"] if item["kind"] == "lookup"] == ["evil.test"]
    assert {item["rule"] for item in payload["suspicious_activity"]["items"]} >= {
        "credential_read", "lookup_outside", "listening_socket",
    }  # fmt: skip
