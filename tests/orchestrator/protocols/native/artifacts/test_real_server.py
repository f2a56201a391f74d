"""Uploads and downloads through a real server, with a folder and with a bucket: clients with sockets of their own."""

import hashlib
import http.client
import secrets
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from runtime_jobs.models import Job, LogChunk, Project, StoredArtifact
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted_steps
from tests.live_server import eventually, serving
from tests.orchestrator.artifacts.conftest import s3_url
from tests.orchestrator.artifacts.nanio_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from tests.workers.agent.worker_process import WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
MIB = 1 << 20
__all__ = ["s3_url"]


class Holder:
    """A worker with a job on a real server, and a client of its organization."""

    def __init__(self, server):
        self.server = server
        self.project = project = ProjectFactory(organization=OrganizationFactory())
        submitted_steps(project)
        worker = WorkerFactory()
        self.lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
        self.headers = {"Authorization": f"Bearer {worker.token}"}
        self.client = {"Authorization": f"Bearer {api_token(project.organization)}"}

    def begin(self, name, size):
        path = f"{self.server.url}/v1/runtime/leases/{self.lease}/artifacts"
        answer = requests.post(path, json={"name": name, "size_bytes": size}, headers=self.headers, timeout=60)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def visible(self):
        listed = requests.get(f"{self.server.url}/v1/artifacts", headers=self.client, timeout=60).json()
        return {row["name"]: row["artifact_id"] for row in listed["results"]}

    def download(self, name, **headers):
        path = f"{self.server.url}/v1/artifacts/{self.visible()[name]}"
        shown = requests.get(path, headers=self.client, timeout=60).json()
        return requests.get(shown["download_url"], headers=headers, timeout=120)


@pytest.fixture
def start(tmp_path, database_url):
    """Starts a server whose files are in a folder of this test."""

    def started(**options):
        variables = {"PUBLIC_URL": "http://{address}", "ARTIFACTS_DIR": str(tmp_path / "artifacts")}
        return serving(tmp_path, **{"DATABASE_URL": database_url} | variables | options)

    return started


@pytest.fixture
def server(start):
    with start() as found:
        yield found


def stored_files(tmp_path):
    return [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]


def test_a_large_file_goes_in_and_out_unchanged(server, tmp_path):
    holder, content = Holder(server), secrets.token_bytes(40 * MIB)
    announced = holder.begin("large.bin", len(content))
    put = requests.put(announced["upload_url"], data=content, timeout=300)
    digest = hashlib.sha256(content).hexdigest()
    assert (put.status_code, put.headers["ETag"]) == (200, f'"{digest}"')
    got = holder.download("large.bin")
    assert (got.status_code, hashlib.sha256(got.content).hexdigest()) == (200, digest)
    part = holder.download("large.bin", Range=f"bytes={39 * MIB}-")
    assert (part.status_code, part.content) == (206, content[39 * MIB :])
    assert [path.stat().st_size for path in stored_files(tmp_path)] == [len(content)]


def test_a_chunked_body_is_counted(server, tmp_path):
    holder = Holder(server)
    for name, blocks, status in (("exact", 4, 200), ("short", 3, 422), ("long", 5, 413)):
        url = holder.begin(name, 4 * MIB)["upload_url"]
        sent = requests.put(url, data=(bytes(MIB) for _ in range(blocks)), timeout=120)
        assert sent.status_code == status, (name, sent.text)
    assert set(holder.visible()) == {"exact"}
    assert len(stored_files(tmp_path)) == 1


def test_a_client_that_ends_in_the_middle_leaves_nothing(server, tmp_path):
    holder = Holder(server)
    parts = urlsplit(holder.begin("half", 8 * MIB)["upload_url"])
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.putrequest("PUT", parts.path)
    connection.putheader("Content-Length", str(8 * MIB))
    connection.endheaders()
    connection.send(bytes(4 * MIB))
    eventually(lambda: stored_files(tmp_path))
    connection.close()
    eventually(lambda: not stored_files(tmp_path))
    assert holder.visible() == {}


def test_a_wrong_address_is_refused_before_the_body(server, tmp_path):
    """A client that waits for `100 Continue` sends nothing of it."""
    parts = urlsplit(Holder(server).begin("a", 8 * MIB)["upload_url"])
    for path, length, status in ((f"{parts.path}x", 8 * MIB, b"403"), (parts.path, 9 * MIB, b"422")):
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
            head = f"PUT {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(65536).split()[1] == status
    assert stored_files(tmp_path) == []


def test_many_uploads_at_once_need_no_thread_each(start):
    """Twenty clients that pause, with two threads for requests: the server answers others meanwhile."""
    with start(REQUEST_THREADS="2") as server:
        holder = Holder(server)
        parts = [urlsplit(holder.begin(f"file-{number}", MIB)["upload_url"]) for number in range(20)]
        connections = []
        for part in parts:
            connection = http.client.HTTPConnection(part.hostname, part.port, timeout=120)
            connection.putrequest("PUT", part.path)
            connection.putheader("Content-Length", str(MIB))
            connection.endheaders()
            connection.send(bytes(MIB // 2))
            connections.append(connection)
        assert holder.visible() == {}  # a request in between
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(lambda connection: connection.send(bytes(MIB // 2)), connections))
        assert [connection.getresponse().status for connection in connections] == [200] * 20
        assert len(holder.visible()) == 20
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_each_kind_of_server_receives(start, kind):
    with start(kind=kind) as server:
        holder, content = Holder(server), secrets.token_bytes(3 * MIB)
        assert requests.put(holder.begin("a", len(content))["upload_url"], data=content, timeout=60).status_code == 200
        assert requests.put(holder.begin("empty", 0)["upload_url"], data=b"", timeout=60).status_code == 200
        wrong = requests.put(holder.begin("b", 5)["upload_url"], data=b"abcd", timeout=60)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "size_mismatch")
        assert holder.download("a").content == content
        assert holder.download("empty").content == b""
        assert set(holder.visible()) == {"a", "empty"}


def test_with_a_bucket_no_byte_passes_through_the_server(start, s3_url):
    variables = {
        "ARTIFACTS_BUCKET": BUCKET, "ARTIFACTS_ENDPOINT_URL": s3_url, "ARTIFACTS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }  # fmt: skip
    with start(**variables) as server:
        holder, content = Holder(server), secrets.token_bytes(3 * MIB)
        url = holder.begin("a", len(content))["upload_url"]
        assert url.startswith(f"{s3_url}/{BUCKET}/")
        assert holder.visible() == {}
        assert requests.put(url, data=content, timeout=60).status_code == 200
        assert set(holder.visible()) == {"a"}
        got = holder.download("a")
        assert (got.content, got.url.startswith(s3_url)) == (content, True)
        wrong = holder.begin("b", 5)["upload_url"]
        assert requests.put(wrong, data=b"abcd", timeout=60).status_code == 200  # the bucket knows no length
        assert set(holder.visible()) == {"a"}
        assert StoredArtifact.objects.filter(completed_at=None).count() == 1
        before = transferred(server.process.pid)
        digest = execute_steps(server, holder, f"head -c {8 * MIB} /dev/urandom > out.bin; sha256sum < out.bin")[:64]
        built = holder.download("out.bin")
        assert (hashlib.sha256(built.content).hexdigest().encode(), len(built.content)) == (digest, 8 * MIB)
        assert transferred(server.process.pid) - before < 4 * MIB, "the worker and the client used the bucket"


def transferred(process_id):
    """The bytes that a process has read and written, from sockets and files."""
    lines = Path(f"/proc/{process_id}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]) + int(counts["wchar"])


def execute_steps(server, holder, step):
    """Let a worker process execute a job with one step, whose file `out.bin` is an artifact; return its log."""
    body = {"org_slug": holder.project.organization.slug, "project_slug": holder.project.slug, "job_type": "steps"}
    artifacts = [{"type": "file", "path": "out.bin"}]
    Project.objects.update(least_isolation="restricted")
    body["spec"] = {"name": "unit", "steps": [step], "timeout_seconds": 60, "artifacts": artifacts}
    body["trigger"] = {"kind": "manual"}
    answer = requests.post(f"{server.url}/v1/jobs", json=body, headers=holder.client, timeout=60)
    assert answer.status_code in {200, 201}, answer.text
    job = Job.objects.filter(job_ulid=answer.json()["job_id"])
    worker = WorkerFactory()
    with tempfile.TemporaryDirectory(prefix="rto-bucket-", dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o711)  # the account of a step walks through it
        token = root / "worker.token"
        token.touch(mode=0o600)
        token.write_text(f"{worker.token}\n{worker.worker_id}\n")
        options = ["--server", server.url, "--token-file", str(token), "--engine", "restricted", "--once"]
        # A worker has no database and no keys of the bucket.
        given = {"PATH": "/usr/bin:/bin", "DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"}
        process = WorkerProcess(given, root / "log", *options, "--work-dir", str(root / "work"))
        try:
            assert process.end(120) == 0, process.log
        finally:
            process.end_anyway()
        assert job.get().public_status == "succeeded", (job.get().failure_message, process.log)
    return b"".join(LogChunk.objects.filter(job_id=job.get().job_ulid).order_by("seq").values_list("chunk", flat=True))
