"""The worker's uploads of artifacts: exactly the announced bytes, no link, and no upload after the job's end."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workers.agent.artifact_upload import ArtifactUploader
from workers.agent.errors import LeaseRejected, RequestRefused, ServerConflict
from workers.agent.object_transfer import open_below


class Store(ThreadingHTTPServer):
    """A server that keeps what is PUT, and answers with the statuses that a test wants, then with 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.statuses: list[int] = []
        self.received: dict[str, bytes] = {}
        self.headers: list[dict[str, str]] = []


class Receiver(BaseHTTPRequestHandler):
    server: Store

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == 200:
            self.server.received[self.path] = body
        self.server.headers.append(dict(self.headers))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store():
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


class Announcer:
    """Announces to the store; `refuse` names what is raised for a name."""

    def __init__(self, store: Store, refuse: dict[str, Exception] | None = None) -> None:
        self.over = threading.Event()
        self.refuse = refuse or {}
        self.announced: list[tuple[str, int]] = []
        self.url = f"http://127.0.0.1:{store.server_address[1]}/"

    def begin_artifact(self, name: str, size_bytes: int) -> str:
        self.announced.append((name, size_bytes))
        if name in self.refuse:
            raise self.refuse[name]
        return self.url + name


def described(*paths: str, size: int = 3) -> list[dict[str, object]]:
    return [{"type": "file", "path": path, "size_bytes": size} for path in paths]


def stored(files: list[dict[str, object]]) -> list[object]:
    return [file["path"] for file in files if file.get("stored")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "dist").mkdir()
    for name in ("dist/a", "dist/b", "c"):
        (tmp_path / name).write_bytes(b"abc")
    return tmp_path


def test_each_file_is_stored_with_its_bytes_and_without_credentials(store, folder, monkeypatch):
    (folder / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    (folder / "empty").touch()
    files = described("dist/a", "c") + described("empty", size=0)
    ArtifactUploader(Announcer(store), lambda: False).upload_all(folder, files)
    assert store.received == {"/dist/a": b"abc", "/c": b"abc", "/empty": b""}
    assert stored(files) == ["dist/a", "c", "empty"]
    assert not [headers for headers in store.headers if "Authorization" in headers]


def test_a_file_that_changed_since_it_was_found_is_not_sent(store, folder):
    (folder / "c").write_bytes(b"abcd")
    files = described("c", "dist/a")
    announcer = Announcer(store)
    ArtifactUploader(announcer, lambda: False).upload_all(folder, files)
    assert stored(files) == ["dist/a"]
    assert announcer.announced == [("dist/a", 3)]


@pytest.mark.parametrize("kind", ["file link", "folder link", "pipe", "folder", "missing"])
def test_nothing_but_a_regular_file_is_opened(store, folder, kind, tmp_path_factory):
    path = "dist/x"
    outside = tmp_path_factory.mktemp("outside")
    (outside / "a").write_bytes(b"abc")
    if kind == "file link":
        (folder / path).symlink_to(outside / "a")
    elif kind == "folder link":
        (folder / "link").symlink_to(outside)
        path = "link/a"
    elif kind == "pipe":
        os.mkfifo(folder / path)
    elif kind == "folder":
        (folder / path).mkdir()
    with pytest.raises(OSError):
        open_below(folder, path)
    files = described(path, "c")
    ArtifactUploader(Announcer(store), lambda: False).upload_all(folder, files)
    assert stored(files) == ["c"]


def test_an_outage_is_waited_for(store, folder, monkeypatch):
    monkeypatch.setattr("workers.agent.retry.Backoff.next", lambda *_: 0.01)
    store.statuses = [503, 500, 429]
    files = described("c")
    ArtifactUploader(Announcer(store), lambda: False).upload_all(folder, files)
    assert (stored(files), store.received) == (["c"], {"/c": b"abc"})


@pytest.mark.parametrize("status", [302, 403, 409, 422, 507])
def test_a_refused_upload_costs_one_artifact(store, folder, status, monkeypatch):
    monkeypatch.setattr("workers.agent.object_transfer.ATTEMPT_SECONDS", 0.0)
    store.statuses = [status]
    files = described("dist/a", "dist/b")
    ArtifactUploader(Announcer(store), lambda: False).upload_all(folder, files)
    # 403 is the same for the next one.
    assert stored(files) == ([] if status == 403 else ["dist/b"])


@pytest.mark.parametrize("status", [402, 403, 404, 429])
def test_what_is_refused_for_all_is_asked_once(store, folder, status):
    announcer = Announcer(store, {"dist/a": RequestRefused(status, "code", "")})
    files = described("dist/a", "dist/b", "c")
    ArtifactUploader(announcer, lambda: False).upload_all(folder, files)
    assert (len(announcer.announced), stored(files)) == (1, [])


def test_the_address_is_in_no_log_line(store, folder, caplog, monkeypatch):
    """The address is a permission to upload."""
    monkeypatch.setattr("workers.agent.object_transfer.ATTEMPT_SECONDS", 0.0)
    announcer = Announcer(store)
    store.statuses = [500, 403]
    for url in (announcer.url + "sesame-", "http://127.0.0.1:1/sesame-"):
        announcer.url = url
        ArtifactUploader(announcer, lambda: False).upload_all(folder, described("dist/a", "c"))
    assert len(caplog.records) == 4
    assert "sesame" not in caplog.text


def test_a_taken_name_is_skipped(store, folder):
    announcer = Announcer(store, {"dist/a": ServerConflict("conflict", "", {})})
    files = described("dist/a", "dist/b")
    ArtifactUploader(announcer, lambda: False).upload_all(folder, files)
    assert stored(files) == ["dist/b"]


def test_a_lost_lease_ends_everything(store, folder):
    announcer = Announcer(store, {"dist/a": LeaseRejected("lease_expired")})
    files = described("dist/a", "dist/b")
    with pytest.raises(LeaseRejected):
        ArtifactUploader(announcer, lambda: False).upload_all(folder, files)
    assert stored(files) == []


def test_a_stopped_job_sends_nothing_more(store, folder):
    files = described("dist/a", "dist/b")
    announcer = Announcer(store)
    announcer.over.set()
    ArtifactUploader(announcer, lambda: True).upload_all(folder, files)
    assert (stored(files), store.received) == ([], {})
    ArtifactUploader(Announcer(store), lambda: False, seconds=0).upload_all(folder, files)
    assert (stored(files), store.received) == ([], {})


def test_an_address_in_plain_text_elsewhere_gets_nothing(store, folder):
    announcer = Announcer(store)
    announcer.url = "http://192.0.2.1/"
    files = described("c")
    ArtifactUploader(announcer, lambda: False).upload_all(folder, files)
    assert stored(files) == []
