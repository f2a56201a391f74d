"""The output of jobs in images: what is kept of it, and how much."""

import contextlib
import json
from types import SimpleNamespace

import pytest

from tests.workers.agent.benches import a_bench
from workers.agent.http.wire import OciPayload
from workers.agent.image_job import MAX_OUTPUT_BYTES, ImageJob, OutputBudget
from workers.engines.contract import ImageRoot, Isolation, RunResult, RunSpec, TraceLevel
from workers.engines.null import FLAG, NullEngine
from workers.engines.oci.documents import ImageConfig

WORK = {
    "timeout_seconds": 60, "working_directory": ".", "allow_network": False, "allow_exec": True, "egress": (),
    "least_isolation": Isolation.NAMESPACES, "trace": TraceLevel.NONE,
}  # fmt: skip
IMAGE = {
    "repository": "p", "digest": "d", "pull_token": "t", "entrypoint": ("/run",), "cmd": None, "environment": {},
    "build_time": False, "file_size": False, "allow_failure": False, "cpus": 1, "memory_bytes": 1, "disk_bytes": 1,
}  # fmt: skip


@pytest.fixture
def iterate(tmp_path):
    """Run iterations that print something and leave files. Returns the output and how often the command ran."""

    def run(*, chunks=(), errors=(), files=None, iterations=1, budget=MAX_OUTPUT_BYTES, **details):
        for name, content in (files or {}).items():
            (tmp_path / name).write_bytes(content)
        job = OciPayload(**WORK, **IMAGE | details, file_paths=tuple(files or ()), iterations=iterations)
        ran = []

        def execute(spec, output, error_output):
            ran.append(spec)
            for data in chunks:
                output.take(data)
            for data in errors:
                error_output.take(data)
            return RunResult("exited", exit_code=0)

        @contextlib.contextmanager
        def root(directory):
            yield ImageRoot(tmp_path, 0, 0, "/")

        image_job = ImageJob(job, ImageConfig(), RunSpec((), tmp_path, 0, 60.0), root, execute)
        image_job.budget = OutputBudget(budget)
        encoded = image_job.output(image_job.run())
        return json.loads(encoded), len(encoded), len(ran)

    return run


def test_the_beginning_of_a_large_output_is_kept(iterate):
    """The bytes are those that are sent: of NUL and of what is no UTF-8 each is six."""
    for data in (b"x" * 65536, b"\0" * 65536, b"\xff" * 65536, "é€😀".encode() * 5000):
        document, size, ran = iterate(chunks=[data] * 64, errors=[b"late"], iterations=5)
        (iteration,) = document["results"]
        assert (document["truncated"], ran) == (True, 1)
        assert MAX_OUTPUT_BYTES - 4096 < size < MAX_OUTPUT_BYTES + 4096
        assert (data * 64).decode("utf-8", "replace").startswith(iteration["stdout"])
        assert "stderr" not in iteration
        assert "Its end is missing" in document["error"]


def test_all_iterations_streams_and_files_have_one_limit(iterate):
    document, size, ran = iterate(
        chunks=[b"o" * 100], errors=[b"e" * 100], files={"f": b"f" * 100}, iterations=1000, budget=5000
    )
    results = document["results"]
    assert ran == len(results) < 20
    assert results[0] == {"exit_code": 0, "stdout": "o" * 100, "stderr": "e" * 100, "output": {"f": "f" * 100}}
    assert (document["truncated"], size < 6000) == (True, True)
    for details in ({}, {"files": {"f": b""}}, {"build_time": True}, {"files": {"f": b"x"}, "file_size": True}):
        document, size, ran = iterate(iterations=1000, budget=5000, **details)
        assert (document["truncated"], size < 6000, ran < 50) == (True, True, True), details
    document, _, _ = iterate(files={"a": b"a" * 6000, "b": b"b"}, budget=5000)
    (files,) = [iteration["output"] for iteration in document["results"]]
    assert set(files) == {"a"}
    assert set(files["a"]) == {"a"}


def test_an_output_within_the_limit_is_whole(iterate):
    euro = "€".encode()
    document, _, ran = iterate(chunks=[euro[:1], euro[1:], b"\xe2"], iterations=2, files={"f": b"\xff"})
    iteration = {"exit_code": 0, "stdout": "€\ufffd", "output": {"f": "\ufffd"}}
    assert (document, ran) == ({"results": [iteration] * 2}, 2)


def test_a_spec_that_is_larger_than_the_machine_is_not_offered(server, client, tmp_path, monkeypatch):
    monkeypatch.setenv(FLAG, "1")
    with a_bench(server, client, tmp_path, NullEngine()) as bench:

        def missing(**resources):
            work = WORK | {"least_isolation": Isolation.NONE}
            job = OciPayload(**work, **IMAGE | resources, file_paths=(), iterations=1)
            return bench.missing_capabilities(SimpleNamespace(oci=job, steps=None, work=job))

        assert missing() == ["images"]  # the engine has none
        assert missing(cpus=10**6, memory_bytes=1 << 60, disk_bytes=1 << 60) == [
            "images",
            "1,000,000 CPUs",
            f"{1 << 60:,} bytes of memory",
            f"{1 << 60:,} bytes of disk",
        ]
