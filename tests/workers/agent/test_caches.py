"""The worker's caches of `steps` jobs, with `tar` as it runs in the sandbox, and a server of signed addresses."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.agent.caches import CachePart, JobCaches, parts_of
from workers.agent.errors import LeaseRejected, ProtocolError, RequestRefused
from workers.agent.http import wire
from workers.agent.http.wire import CacheDownload, CachePayload
from workers.engines.contract import EngineUnavailable, MountPoints, RunResult, RunSpec, StopSignal, TraceLevel


class Objects(ThreadingHTTPServer):
    """Keeps what is PUT under a path, and returns it; `queries` are part of the path, as those of a bucket are."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, bytes] = {}
        self.cut = 0  # so many downloads end after half of the content
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Objects

    def do_PUT(self) -> None:
        self.server.content[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        content = self.server.content[self.path]
        self.send_response(200)
        if self.server.cut != 1:  # else the end of the connection is the end of the content
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.cut > 0:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def objects():
    with Objects() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


class Server:
    """The messages about caches of one lease, in memory."""

    def __init__(self, objects: Objects) -> None:
        self.over = threading.Event()
        self.objects = objects
        self.refuse: Exception | None = None
        self.saved: list[tuple[str, str, int]] = []

    def _path(self, key: str, version: str) -> str:
        return f"/{version}?X-Signature={key}"

    def restore_cache(self, key: str, version: str) -> CacheDownload | None:
        if self.refuse:
            raise self.refuse
        content = self.objects.content.get(self._path(key, version))
        if content is None:
            return None
        digest = hashlib.sha256(content).hexdigest()
        return CacheDownload(self.objects.url + self._path(key, version), len(content), digest)

    def save_cache(self, key: str, version: str, size_bytes: int) -> str | None:
        self.saved.append((key, version, size_bytes))
        path = self._path(key, version)
        return None if path in self.objects.content else self.objects.url + path

    def put(self, part: CachePart, content: bytes) -> None:
        self.objects.content[self._path(part.key, part.version)] = content


class PlainEngine:
    """Runs a command as a process, without a sandbox: what tar does is tested here, not what it may do."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.specs: list[RunSpec] = []
        self.refuse: Exception | None = None

    def owner(self, slot: int) -> int | None:
        return None

    def mount_points(self, spec: RunSpec) -> MountPoints:
        return MountPoints(str(spec.workspace), str(self.home))

    def run(self, spec: RunSpec, *, output: Any, trace: Any, stop: StopSignal) -> RunResult:
        self.specs.append(spec)
        if self.refuse:
            raise self.refuse
        environment = {"PATH": os.defpath, "HOME": str(self.home), **spec.environment}
        done = subprocess.run(spec.argv, cwd=spec.workspace / spec.working_directory, env=environment, check=False)
        return RunResult("exited", exit_code=done.returncode)


class Job:
    """A job with a workspace and a home of its own."""

    def __init__(self, root: Path, server: Server, *caches: CachePayload, directory: str = ".") -> None:
        self.work, self.home = root / "work", root / "home"
        (self.work / directory).mkdir(parents=True)
        self.home.mkdir()
        self.engine, self.stop = PlainEngine(self.home), StopSignal()
        spec = RunSpec(
            (),
            self.work,
            0,
            60,
            working_directory=directory,
            environment={"TAR_OPTIONS": "--nonsense"},
            keeps_home=True,
        )
        self.caches = JobCaches(server, self.engine, spec, self.stop, caches)  # type: ignore[arg-type]

    def write(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def cache(*paths: str, key: str = "deps", read_only: bool = False) -> CachePayload:
    return CachePayload("deps", key, paths, read_only)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_paths_in_the_home_and_the_workspace_come_back_in_the_next_job(objects, tmp_path):
    server, wanted = Server(objects), cache("~/.m2/repository", "node_modules", "vendor/x", "never/made")
    first = Job(tmp_path / "a", server, wanted, directory="app")
    first.caches.restore_all()
    assert first.engine.specs == []
    first.write(first.home / ".m2/repository/jar", "jar")
    first.write(first.work / "app/node_modules/pkg/index.js", "js")
    first.write(first.work / "app/node_modules/.hidden", "dot")
    first.write(first.work / "app/not-cached", "x")
    (first.work / "app/vendor").mkdir()
    (first.work / "app/vendor/x").symlink_to("/nowhere")
    assert first.caches.has_unsaved()
    first.caches.save_all()
    assert first.caches.results() == [{"type": "deps", "key": "deps", "hit": False, "read_only": False}]

    second = Job(tmp_path / "b", server, wanted, directory="app")
    second.caches.restore_all()
    assert (second.home / ".m2/repository/jar").read_text() == "jar"
    assert (second.work / "app/node_modules/pkg/index.js").read_text() == "js"
    assert (second.work / "app/node_modules/.hidden").read_text() == "dot"
    assert (second.work / "app/vendor/x").readlink() == Path("/nowhere")
    assert names_in(second.work / "app") == ["node_modules", "vendor"]
    assert (names_in(second.work), names_in(first.work)) == (["app"], ["app"]), "no archive is left"
    assert second.caches.results() == [{"type": "deps", "key": "deps", "hit": True, "read_only": False}]
    assert not second.caches.has_unsaved(), "an entry never changes"


def test_tar_has_neither_the_variables_nor_the_trace_of_the_job(objects, tmp_path):
    job = Job(tmp_path / "a", Server(objects), cache("x"))
    job.write(job.work / "x", "x")
    job.caches.save_all()
    assert [(spec.environment, spec.trace) for spec in job.engine.specs] == [({}, TraceLevel.NONE)]
    assert len(objects.content) == 1


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", [(False, ("a",))]),
        ("./a//b/", [(False, ("a/b",))]),
        ("~/a", [(True, ("a",))]),
        ("a/../b", [(False, ("b",))]),
        ("~a", [(False, ("~a",))]),
        ("..", []), ("../x", []), ("a/../../x", []), ("/etc", []), ("//etc", []), ("~/../x", []), ("~", []), ("~/", []),
        ("~//etc", []), (".", []), ("./", []),
    ],
)  # fmt: skip
def test_no_path_leaves_its_directory(path, found):
    assert [(part.in_home, part.paths) for part in parts_of(cache(path))] == found


def test_another_set_of_paths_is_another_entry():
    def version(*paths: str) -> str:
        (part,) = parts_of(cache(*paths))
        return part.version

    assert version("a", "b") == version("b", "a", "./a")
    assert len({version("a"), version("b"), version("a", "b"), version("~/a"), version("a,b")}) == 5
    assert len(version("a")) == 64


def test_a_read_only_cache_is_restored_and_never_saved(objects, tmp_path):
    server, wanted = Server(objects), cache("x", read_only=True)
    job = Job(tmp_path / "a", server, wanted)
    job.write(job.work / "x", "x")
    assert not job.caches.has_unsaved()
    job.caches.save_all()
    assert (server.saved, job.engine.specs) == ([], [])
    writer = Job(tmp_path / "b", server, cache("x"))
    writer.write(writer.work / "x", "x")
    writer.caches.save_all()
    reader = Job(tmp_path / "c", server, wanted)
    reader.caches.restore_all()
    assert (reader.work / "x").read_text() == "x"
    assert reader.caches.results()[0]["hit"] is True


def test_a_cache_without_files_is_not_saved(objects, tmp_path):
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x", "y"))
    job.caches.save_all()
    assert (server.saved, names_in(job.work)) == ([], [])


def test_an_archive_that_is_cut_off_is_not_stored(objects, tmp_path, caplog):
    """tar fails on a file that it cannot read, as on a full disk."""
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    job.write(job.work / "x", "x")
    (job.work / "tar").write_text('#!/bin/sh\n/bin/tar "$@"; exit 2\n')
    (job.work / "tar").chmod(0o755)
    original = job.engine.run

    def run(spec: RunSpec, **more: Any) -> RunResult:
        return original(SimpleNamespaceSpec(spec, job.work), **more)

    job.engine.run = run  # type: ignore[method-assign]
    job.caches.save_all()
    assert (server.saved, objects.content) == ([], {})
    assert "exit code 2" in caplog.text
    assert names_in(job.work) == ["tar", "x"]


class SimpleNamespaceSpec(SimpleNamespace):
    """A spec whose PATH begins with a directory."""

    def __init__(self, spec: RunSpec, first: Path) -> None:
        super().__init__(**vars(spec) | {"environment": {"PATH": f"{first}:{os.defpath}"}})


def test_a_download_that_breaks_off_is_repeated(objects, tmp_path, monkeypatch):
    monkeypatch.setattr("workers.agent.retry.Backoff.next", lambda *_: 0.01)
    server = Server(objects)
    first = Job(tmp_path / "a", server, cache("x"))
    first.write(first.work / "x", "x" * 1000)
    first.caches.save_all()
    objects.cut = 2
    second = Job(tmp_path / "b", server, cache("x"))
    second.caches.restore_all()
    assert (second.work / "x").read_text() == "x" * 1000


@pytest.mark.parametrize("wrong", ["digest", "longer"])
def test_content_other_than_announced_is_not_unpacked(objects, tmp_path, wrong, caplog):
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    (part,) = parts_of(cache("x"))
    server.put(part, archive_of("x", b"x"))
    found = server.restore_cache(part.key, part.version)
    assert found is not None
    size, digest = (found.size_bytes, "0" * 64) if wrong == "digest" else (found.size_bytes - 1, None)
    server.restore_cache = lambda *_: CacheDownload(found.url, size, digest)  # type: ignore[method-assign]
    job.caches.restore_all()
    assert (job.engine.specs, names_in(job.work)) == ([], [])
    assert ("another digest" if wrong == "digest" else "more than the announced") in caplog.text
    assert "Signature" not in caplog.text, "an address is a permission"


@pytest.mark.parametrize("name", ["../escaped", "/tmp/rto-escaped", "link/escaped"])
def test_an_archive_does_not_write_outside_of_its_directory(objects, tmp_path, name):
    """A job of the same project may have packed anything. What remains to tar is the sandbox of the job."""
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (part,) = parts_of(cache("x"))
    server.put(part, archive_of(name, b"x", link=("link", str(outside))))
    job.caches.restore_all()
    assert names_in(outside) == []
    assert not (tmp_path / "a" / "escaped").exists()
    assert not Path("/tmp/rto-escaped").exists()


def archive_of(name: str, content: bytes, link: tuple[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        if link is not None:
            entry = tarfile.TarInfo(link[0])
            entry.type, entry.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(entry)
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def test_a_link_in_the_checkout_does_not_lead_the_worker_elsewhere(objects, tmp_path, monkeypatch):
    """The checkout is made before the cache is restored. Its author may guess the name of the archive."""
    monkeypatch.setattr("workers.agent.caches.secrets.token_hex", lambda _: "guessed")
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (job.work / ".cache-guessed.tar.gz").symlink_to(victim)
    (part,) = parts_of(cache("x"))
    server.put(part, archive_of("x", b"x"))
    job.caches.restore_all()
    assert (victim.read_text(), job.engine.specs) == ("kept", [])


@pytest.mark.parametrize("error", [RequestRefused(404, "not_found", ""), ProtocolError("download_url")])
def test_a_refusal_costs_only_the_cache(objects, tmp_path, error):
    server = Server(objects)
    server.refuse = error
    job = Job(tmp_path / "a", server, cache("x"))
    job.caches.restore_all()
    assert job.caches.results()[0]["hit"] is False


def test_an_engine_that_fails_costs_only_the_cache(objects, tmp_path):
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    job.engine.refuse = EngineUnavailable("x")
    job.write(job.work / "x", "x")
    job.caches.save_all()
    assert server.saved == []


def test_a_lost_lease_ends_the_job(objects, tmp_path):
    server = Server(objects)
    server.refuse = LeaseRejected("lease_expired")
    with pytest.raises(LeaseRejected):
        Job(tmp_path / "a", server, cache("x")).caches.restore_all()


def test_a_stopped_job_moves_no_file(objects, tmp_path):
    server = Server(objects)
    job = Job(tmp_path / "a", server, cache("x"))
    job.write(job.work / "x", "x")
    job.stop.request()
    job.caches.restore_all()
    job.caches.save_all()
    assert (server.saved, job.engine.specs) == ([], [])


@pytest.mark.parametrize(
    "body",
    [
        {"download_url": 1, "size_bytes": 1},
        {"download_url": "x", "size_bytes": "1"},
        {"download_url": "x", "size_bytes": -1},
        {"download_url": "x"},
        {"download_url": "x", "size_bytes": 1, "sha256": 1},
    ],
)
def test_a_malformed_entry_is_a_protocol_error(body):
    with pytest.raises(ProtocolError):
        wire.cache_download(body)


def test_no_entry_is_none():
    assert wire.cache_download({"key": None, "size_bytes": None, "sha256": None, "download_url": None}) is None
