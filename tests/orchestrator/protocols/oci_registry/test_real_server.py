"""The registry through the real server: bodies that stream, kill -9, slow and refused uploads, both kinds of server."""

import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import requests

from orchestrator.images.collection import collect_images
from orchestrator.images.digests import Digest
from orchestrator.images.models import BlobUpload, ImageBlob
from orchestrator.images.tokens import new_pull_token
from runtime_jobs.models import Project
from tests.live_server import eventually, serving
from tests.orchestrator.images.world import (
    content,
    missing_files,
    storages_in,
    stored,
    stored_files,
    token,
    unnamed_files,
)
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
URL = "http://localhost:61016"
LIMIT = 64 << 20
ENVIRONMENT = {"PUBLIC_URL": URL, "IMAGE_UPLOAD_LIMIT_BYTES": str(LIMIT), "BODY_SECONDS": "5"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module", params=["asgi", "wsgi"])
def server(request, database_url, folder, settings_key):
    with serving(folder, kind=request.param, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as found:
        found.kind = request.param
        yield found


@pytest.fixture(scope="module")
def settings_key(django_db_setup):
    from django.conf import settings  # noqa: PLC0415 - after the settings were made

    return {"SECRET_KEY": settings.SECRET_KEY}


@pytest.fixture
def project(settings, folder):
    settings.PUBLIC_URL = URL
    settings.STORAGES = storages_in(settings, folder / "state" / "images")
    shutil.rmtree(folder / "state" / "images", ignore_errors=True)  # of tests whose rows were deleted
    return new_project("adapter")


@pytest.fixture
def client(project):
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {token(project)}"
    return session


def begin(server, client) -> str:
    response = client.post(f"{server.url}/v2/adapter/blobs/uploads/", timeout=60)
    assert response.status_code == 202, response.text
    return server.url + response.headers["Location"]


def in_blocks(data: bytes, size: int = 100_000):
    """The body of a chunked request."""
    return (data[start : start + size] for start in range(0, len(data), size))


def test_a_large_blob_goes_in_and_out(server, client):
    data = content(5 << 20)
    digest = Digest.of(data)
    place = begin(server, client)
    assert client.patch(place, data=data, timeout=60).headers["Range"] == f"0-{len(data) - 1}"
    assert client.put(f"{place}?digest={digest}", timeout=60).status_code == 201
    url = f"{server.url}/v2/adapter/blobs/{digest}"
    found = client.get(url, timeout=60)
    assert (found.content, found.headers["Content-Length"]) == (data, str(len(data)))
    assert found.headers["Content-Type"] == "application/octet-stream"
    part = client.get(url, headers={"Range": "bytes=1000000-3999999"}, timeout=60)
    assert (part.status_code, part.content) == (206, data[1_000_000:4_000_000])
    head = client.head(url, timeout=60)
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(data)))
    assert client.get(f"{server.url}/v2/", timeout=60).json() == {}, "the connection can be used again"


def test_docker_sends_its_parts_chunked(server, client):
    if server.kind == "wsgi":
        pytest.skip("this WSGI server reads no chunked body")
    data = content(3 << 20)
    place = begin(server, client)
    assert client.patch(place, data=in_blocks(data), timeout=60).status_code == 202
    assert client.put(f"{place}?digest={Digest.of(data)}", timeout=60).status_code == 201
    assert BlobUpload.objects.count() == 0
    assert unnamed_files() == set()


def test_a_runner_pulls(server, client, project):
    data = content(1 << 20)
    digest = Digest.of(data)
    client.post(f"{server.url}/v2/adapter/blobs/uploads/?digest={digest}", data=data, timeout=60)
    headers = {"Authorization": f"Bearer {new_pull_token(project.uuid, project.uuid)}"}
    url = f"{server.url}/v2/{project.uuid}/blobs/{digest}"
    assert requests.get(url, headers=headers, timeout=60).content == data
    assert headers["Authorization"].split(".")[1] not in server.log()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413_and_leaves_nothing(server, client, chunked):
    if server.kind == "wsgi" and chunked:
        pytest.skip("this WSGI server reads no chunked body")
    place = begin(server, client)
    body = bytes(LIMIT + 1)
    try:
        response = client.patch(place, data=in_blocks(body, 1 << 20) if chunked else body, timeout=60)
    except requests.ConnectionError:
        return  # the server has closed the connection while the client was sending
    assert response.status_code == 413
    assert unnamed_files() == set()


def test_a_stranger_sends_no_large_body(server, client, folder):
    """Without the right to push nothing is received: the token is verified before the body is read."""
    if server.kind == "wsgi":
        pytest.skip("the view refuses before it reads")
    place = begin(server, client)
    other = Project.objects.create(organization=new_project("foreign").organization, slug="third")
    for bearer in ("x", token(other), token(Project.objects.get(slug="adapter"), actions=("pull",))):
        headers = {"Authorization": f"Bearer {bearer}"}
        try:
            response = requests.patch(place, data=in_blocks(bytes(20 << 20)), headers=headers, timeout=60)
        except requests.ConnectionError:
            continue
        assert response.status_code in {401, 403, 413}
    assert stored_files("uploads") == []


def head_of(path: str, bearer: str, length: int) -> bytes:
    lines = [
        f"PATCH {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {bearer}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def test_an_upload_that_pauses_is_ended_and_leaves_nothing(server, client, project):
    if server.kind == "wsgi":
        pytest.skip("a thread waits there")
    place = begin(server, client).removeprefix(server.url)
    with server.connect() as connection:
        connection.sendall(head_of(place, token(project), 10 << 20) + bytes(2 << 20))
        eventually(lambda: stored_files("uploads"))
        assert b" 408 " in connection.recv(1000)
    eventually(lambda: not stored_files("uploads"))


def test_a_client_that_disconnects_leaves_nothing(server, client, project):
    if server.kind == "wsgi":
        pytest.skip("a thread waits there")
    place = begin(server, client).removeprefix(server.url)
    with server.connect() as connection:
        connection.sendall(head_of(place, token(project), 10 << 20) + bytes(2 << 20))
        eventually(lambda: stored_files("uploads"))
    eventually(lambda: not stored_files("uploads"))
    assert BlobUpload.objects.get().size == 0


def test_hundreds_of_slow_uploads_hold_no_thread(server, client, project):
    if server.kind == "wsgi":
        pytest.skip("a thread waits there")
    place = begin(server, client).removeprefix(server.url)
    sockets = [server.connect() for _ in range(150)]
    try:
        for connection in sockets:
            connection.sendall(head_of(place, token(project), 1 << 20) + b"x")
        assert client.get(f"{server.url}/v2/", timeout=60).status_code == 200
    finally:
        for connection in sockets:
            connection.close()


class TestKill:
    """kill -9 of the only server in an upload."""

    @pytest.mark.parametrize("step", ["while a part arrives", "between two parts", "while a part follows another"])
    def test_nothing_is_visible_and_nothing_remains_after_collection(
        self, database_url, folder, settings_key, client, project, step
    ):
        with serving(folder, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as server:
            place = begin(server, client)
            if step != "while a part arrives":
                assert client.patch(place, data=content(1 << 20), timeout=60).status_code == 202
            if step != "between two parts":
                with server.connect() as connection:
                    head = head_of(place.removeprefix(server.url), token(project), 10 << 20)
                    connection.sendall(head + bytes(2 << 20))
                    eventually(unnamed_files)
                    os.kill(server.process.pid, signal.SIGKILL)
                    server.process.wait()
            else:
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait()
        assert ImageBlob.objects.count() == 0
        collect_images(timedelta(0))
        assert (stored_files(), BlobUpload.objects.count(), missing_files()) == ([], 0, set())

    def test_an_upload_continues_after_a_restart(self, database_url, folder, settings_key, client, project):
        first, second = content(1 << 20), content(1 << 20)
        digest = Digest.of(first + second)
        with serving(folder, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as server:
            place = begin(server, client)
            assert client.patch(place, data=first, timeout=60).status_code == 202
            path = place.removeprefix(server.url)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
        with serving(folder, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as server:
            status = client.get(server.url + path, timeout=60)
            assert status.headers["Range"] == f"0-{len(first) - 1}"
            headers = {"Content-Range": f"{len(first)}-{len(first + second) - 1}"}
            done = client.put(f"{server.url}{path}?digest={digest}", data=second, headers=headers, timeout=60)
            assert done.status_code == 201
            assert client.get(f"{server.url}/v2/adapter/blobs/{digest}", timeout=60).content == first + second


def resident_bytes(process_id: int) -> int:
    """The largest resident memory of a process so far."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def test_a_large_blob_costs_no_memory(database_url, folder, settings_key, client):
    """64 MiB in and out. `make bench` measures a gigabyte."""
    data = bytes(LIMIT)
    digest = Digest.of(data)
    with serving(folder, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as server:
        small = content(1 << 20)
        url = f"{server.url}/v2/adapter/blobs"
        for body in (small, data):
            before = resident_bytes(server.process.pid)
            digest = Digest.of(body)
            done = client.post(f"{url}/uploads/?digest={digest}", data=in_blocks(body, 1 << 20), timeout=120)
            assert done.status_code == 201, done.text
            with client.get(f"{url}/{digest}", stream=True, timeout=120) as response:
                assert sum(len(block) for block in response.iter_content(1 << 20)) == len(body)
        assert resident_bytes(server.process.pid) - before < 24 << 20


def test_a_slow_reader_holds_no_thread(server, client, project):
    """More readers than threads have begun to read a blob, and other requests are answered."""
    if server.kind == "wsgi":
        pytest.skip("a thread for each request")
    data = bytes(4 << 20)
    digest = Digest.of(data)
    client.post(f"{server.url}/v2/adapter/blobs/uploads/?digest={digest}", data=data, timeout=60)
    request = (
        f"GET /v2/adapter/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(project)}\r\n\r\n"
    )
    sockets = [server.connect() for _ in range(60)]
    try:
        for connection in sockets:
            connection.sendall(request.encode())
        for connection in sockets:
            assert b" 200 " in connection.recv(100)
        assert client.get(f"{server.url}/v2/", timeout=60).status_code == 200
    finally:
        for connection in sockets:
            connection.close()


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_slow_readers_hold_no_database_connection(database_url, folder, settings_key, project, kind):
    """Two readers, who read nothing, once held both connections of a WSGI process, and the rest was answered 503."""
    digest = stored(project, bytes(30 << 20))
    path, environment = f"/v2/adapter/blobs/{digest}", ENVIRONMENT | {"DATABASE_POOL_MAX": "2"}
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(project)}\r\n\r\n"
    with (
        serving(folder, kind=kind, DATABASE_URL=database_url, **environment, **settings_key) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        for connection in (first, second):
            connection.sendall(head.encode())
            assert b" 200 " in connection.recv(100)
        headers = {"Authorization": f"Bearer {token(project)}"}
        for _ in range(2):
            assert requests.get(f"{server.url}/v2/adapter/tags/list", headers=headers, timeout=60).status_code == 200


def test_slow_readers_hold_no_file(database_url, folder, settings_key, project):
    """Else a server with as many slow readers as connections has no descriptor for anything else."""
    digest = stored(project, bytes(30 << 20))
    head = f"GET /v2/adapter/blobs/{digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(project)}\r\n\r\n"

    def open_blobs() -> list[str]:
        descriptors = Path(f"/proc/{server.process.pid}/fd").iterdir()
        return [path for path in map(str, map(Path.resolve, descriptors)) if "/images/" in path]

    with (
        serving(folder, DATABASE_URL=database_url, **ENVIRONMENT, **settings_key) as server,
        server.connect() as connection,
    ):
        connection.sendall(head.replace("Host: x", "Host: localhost").encode())
        assert b" 200 " in connection.recv(100)
        eventually(lambda: not open_blobs())
