"""The parts of `make runner` that need no runner: its refusals, the image, the proxy and its recordings."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from gzip import decompress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage
from websockets.sync.client import connect
from websockets.sync.server import serve

from config.paths import BASE_DIR
from tests.bencher_runner import image as images
from tests.bencher_runner.installation import RunnerProcess, children, free_port
from tests.bencher_runner.proxy import REDACTED, UNKNOWN_KEY, Recording, RecordingProxy
from tests.live_server import eventually

needs_machine = pytest.mark.skipif(not images.supports_machine(), reason="the program of the image is for x86-64")


# --- What is missing --------------------------------------------------------------------------------------------------


def played(**variables):
    environment = {name: value for name, value in os.environ.items() if name != "BENCHER_RUNNER"}
    command = [sys.executable, "-m", "tests.bencher_runner"]
    return subprocess.run(
        command, cwd=BASE_DIR, env=environment | variables, capture_output=True, text=True, check=False
    )


@needs_machine
def test_what_is_missing_is_one_line_and_exit_code_2(tmp_path):
    file = tmp_path / "runner"
    file.write_text("#!/bin/sh\necho something 1.0\n")
    for variables, reason in (
        ({}, "BENCHER_RUNNER is not set"),
        ({"BENCHER_RUNNER": str(tmp_path / "absent")}, "is no executable file"),
        ({"BENCHER_RUNNER": str(file)}, "is no executable file"),
        ({"BENCHER_RUNNER": str(tmp_path)}, "is no executable file"),
    ):
        found = played(**variables)
        assert (found.returncode, found.stderr) == (2, "")
        (line,) = found.stdout.splitlines()
        assert reason in line
    file.chmod(0o755)
    found = played(BENCHER_RUNNER=str(file))
    assert found.returncode == 2
    assert "is not Bencher's runner" in found.stdout


def test_the_makefile_has_the_target():
    found = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "runner"],
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.rstrip().endswith("python -m tests.bencher_runner")


# --- The image --------------------------------------------------------------------------------------------------------


@needs_machine
def test_the_program_sleeps_writes_its_metrics_and_ends_with_its_exit_code(tmp_path):
    program = tmp_path / images.PROGRAM
    program.write_bytes(images.program(b"to stdout", b"to a file"))
    program.chmod(0o755)
    for code in (0, 7, 255):
        found = subprocess.run([program, "0", str(code)], cwd=tmp_path, env={}, capture_output=True, check=False)
        assert (found.returncode, found.stdout, found.stderr) == (code, b"to stdout", b"")
        assert (tmp_path / images.OUTPUT_FILE).read_bytes() == b"to a file"
    sleeping = subprocess.Popen([program, "120", "0"], cwd=tmp_path, env={})
    with pytest.raises(subprocess.TimeoutExpired):
        sleeping.wait(0.5)
    sleeping.kill()
    sleeping.wait()


def test_the_image_is_equal_at_each_call_and_its_digests_are_true():
    image = images.build_image()
    assert image == images.build_image()
    manifest = json.loads(image.manifest)
    config, layer = image.blobs
    assert [(part["digest"], part["size"]) for part in (manifest["config"], *manifest["layers"])] == [
        (images.digest(blob), len(blob)) for blob in image.blobs
    ]
    assert json.loads(config)["rootfs"]["diff_ids"] == [images.digest(decompress(layer))]
    with tarfile.open(fileobj=io.BytesIO(decompress(layer))) as files:
        (entry,) = files.getmembers()
    assert (entry.name, entry.mode, entry.isfile()) == (images.PROGRAM, 0o755, True)


# --- The proxy --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def proxied(handler, keys):
    """A server, and a proxy before it."""
    with serve(handler, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with RecordingProxy(server.socket.getsockname(), keys) as proxy:
            yield proxy


def open_line(proxy, key):
    url = proxy.url.replace("http", "ws") + "/v0/runners/rack/channel"
    headers = {"Authorization": f"Bearer {key}"}
    return connect(url, additional_headers=headers, compression=None, ping_interval=None, close_timeout=5)


def without_time(entries):
    return [{name: value for name, value in entry.items() if name != "at"} for entry in entries]


def test_the_proxy_records_each_frame_without_secrets():
    def handler(line):
        for _ in range(2):
            line.send(json.dumps({"event": "job", "oci_token": "a.b.c", "asked": json.loads(line.recv())}))
        line.close(1001, "server shutting down")

    with proxied(handler, {"secret-key": "rack"}) as proxy:
        with open_line(proxy, "secret-key") as line:
            line.send('{"event":"ready"}')
            assert json.loads(line.recv())["oci_token"] == "a.b.c", "the runner gets what the server sent"
            line.send(['{"event":', '"running"}'])
            line.recv()
            with pytest.raises(ConnectionClosed, match="1001"):
                line.recv()
        proxy.recording.wait_for(lambda entries: [entry for entry in entries if "end" in entry], 10, "end")
        entries = proxy.recording.entries
    assert entries == sorted(entries, key=lambda entry: entry["at"])
    assert "secret-key" not in json.dumps(entries)
    assert "a.b.c" not in json.dumps(entries)
    job = {"event": "job", "oci_token": REDACTED}
    assert without_time(entries)[:7] == [
        {"from": "runner", "connection": 1, "handshake": "/v0/runners/rack/channel", "key": "rack"},
        {"from": "server", "connection": 1, "status": 101},
        {"from": "runner", "connection": 1, "message": {"event": "ready"}},
        {"from": "server", "connection": 1, "message": job | {"asked": {"event": "ready"}}},
        {"from": "runner", "connection": 1, "message": {"event": "running"}},
        {"from": "server", "connection": 1, "message": job | {"asked": {"event": "running"}}},
        {"from": "server", "connection": 1, "close": 1001, "reason": "server shutting down"},
    ]


def test_the_proxy_records_refusals_and_an_absent_server():
    with proxied(lambda line: None, {}) as proxy:
        proxy.recording = first = Recording()
        with open_line(proxy, "x"):
            pass
        assert first.entries[0]["key"] == UNKNOWN_KEY
    with RecordingProxy(("127.0.0.1", free_port()), {}) as proxy:
        with pytest.raises(InvalidMessage):
            open_line(proxy, "x")
        proxy.recording.wait_for(lambda entries: len(entries) > 1, 10, "end")
        assert without_time(proxy.recording.entries)[1] == {"from": "server", "connection": 1, "end": True}


def test_a_wait_for_an_entry_that_never_comes_names_it():
    with pytest.raises(AssertionError, match="there was no answer"):
        Recording().wait_for(lambda entries: entries, 0.01, "answer")


# --- Processes --------------------------------------------------------------------------------------------------------


def test_a_stopped_runner_leaves_no_benchmark(tmp_path):
    """SIGKILL ends the program only; its benchmark ends with `stop`."""
    program = tmp_path / "runner"
    program.write_text("#!/bin/sh\nsleep 300 &\nwait\n")
    program.chmod(0o755)
    with proxied(lambda line: None, {}) as proxy:
        process = RunnerProcess(program, tmp_path / "folder")
        process.start(proxy, "rack", "key", poll_seconds=1)
        (benchmark,) = eventually(lambda: children(process.part.process.pid))
        process.kill()
        assert _lives(benchmark)
        process.stop()
        eventually(lambda: not _lives(benchmark))


def _lives(process):
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return False
