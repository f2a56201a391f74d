"""Measures uploads and downloads of artifacts: speed against a bare application, memory, and bytes with a bucket.

The bare application of the same uvicorn writes each body to a file and sends that file. It neither counts nor hashes,
names no row, and does not wait for the disk. Both serve the same client, in turns.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from runtime_jobs.models import Plan
from tests.factories import WorkerFactory, api_token, claimed, submitted_steps
from tests.orchestrator.artifacts.nanio_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, s3_server

MEBIBYTE = 1 << 20
BLOCK = 1 << 20
AT_ONCE = 8
ANSWERS_WITHIN = 30.0
BARE = """
import os, sys

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path = os.path.join(os.environ["BARE_FOLDER"], scope["path"].strip("/").replace("/", "_") or "empty")
    if scope["method"] == "PUT":
        with open(path, "wb") as file:
            more = True
            while more:
                message = await receive()
                file.write(message.get("body", b""))
                more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    size = os.path.getsize(path) if os.path.exists(path) else 0
    head = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    if size:
        with open(path, "rb") as file:
            while block := file.read(1 << 18):
                await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body"})
"""


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio to the bare application, the memory of 8 transfers at once, and the bytes with a bucket."""
    is_full = sizes.name == "full"
    mebibytes, rounds = (1024, 3) if is_full else (64, 3)
    tenants.settled("artifacts", organizations=["acme"], workers=1)
    Plan.objects.update(max_stored_bytes=None)
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    with servers.serving(cluster, "asgi-1") as server:
        client = ArtifactClient(server)
        memory = _memory(server, client, mebibytes // AT_ONCE)
        folder = _through_server(server, client, 16)
        with _bare_application(cluster) as bare:
            for number in range(rounds):
                rates["bare"].append(_rate(f"{bare}/{number}", f"{bare}/{number}", mebibytes))
                announced = client.announce(f"file-{number}", mebibytes * MEBIBYTE)
                rates["ours"].append(_rate(announced["upload_url"], announced["artifact_id"], mebibytes, client))
    assert folder["through_server_mb"] >= 2 * folder["mib"], "the counter of the kernel counts no sockets here"
    bucket = _with_bucket(cluster, min(mebibytes, 256))
    ratio = statistics.median(rates["ours"]) / statistics.median(rates["bare"])
    return {
        "artifacts": round(ratio, 2),
        "artifacts_memory_mib": memory["more_mib"],
        "artifacts_bucket_mb": bucket["through_server_mb"],
        "artifact_store": {
            "mib": mebibytes,
            "mb_per_s": {name: [round(rate) for rate in each] for name, each in rates.items()},
            "memory": memory,
            "folder": folder,
            "bucket": bucket,
        },
    }


class ArtifactClient:
    """The worker that uploads, and the client that downloads."""

    def __init__(self, server: servers.Serving) -> None:
        self.url = server.address.url
        project = tenants.project("acme", "artifacts")
        submitted_steps(project)
        worker = WorkerFactory(pool__slug="artifacts")
        self._lease = claimed(worker, job_types=("steps",)).lease.lease_ulid
        self._worker = {"Authorization": f"Bearer {worker.token}"}
        self._reader = {"Authorization": f"Bearer {api_token(project.organization)}"}

    def announce(self, name: str, size: int) -> dict[str, Any]:
        """Announce an artifact, and renew the lease."""
        base = f"{self.url}/v1/runtime/leases/{self._lease}"
        requests.post(f"{base}/heartbeat", json={}, headers=self._worker, timeout=60).raise_for_status()
        body = {"name": name, "size_bytes": size}
        answer = requests.post(f"{base}/artifacts", json=body, headers=self._worker, timeout=60)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def download_url(self, artifact_id: str) -> str:
        """Return the address of the content of an artifact."""
        answer = requests.get(f"{self.url}/v1/artifacts/{artifact_id}", headers=self._reader, timeout=60)
        answer.raise_for_status()
        return str(answer.json()["download_url"])


def put(url: str, mebibytes: int) -> bytes:
    """PUT so many MiB, and return their SHA-256."""
    digest, seed = hashlib.sha256(), os.urandom(BLOCK - 8)

    def blocks() -> Iterator[bytes]:
        for number in range(mebibytes):
            block = number.to_bytes(8, "big") + seed
            digest.update(block)
            yield block

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request("PUT", target, blocks(), {"Content-Length": str(mebibytes * MEBIBYTE)})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status == 200, (response.status, text[:300])
    return digest.digest()


def get(url: str) -> bytes:
    """GET an address, and return the SHA-256 of the content."""
    digest, buffer, parts = hashlib.sha256(), bytearray(BLOCK), urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
    response = connection.getresponse()
    while count := response.readinto(buffer):
        digest.update(memoryview(buffer)[:count])
    connection.close()
    assert response.status == 200, response.status
    return digest.digest()


def _rate(upload: str, download: str, mebibytes: int, client: ArtifactClient | None = None) -> float:
    """Return the MB/s of an upload and the download of the same content."""
    began = time.perf_counter()
    sent = put(upload, mebibytes)
    received = get(client.download_url(download) if client else download)
    seconds = time.perf_counter() - began
    assert sent == received
    return 2 * mebibytes * MEBIBYTE / 1e6 / seconds


def _memory(server: servers.Serving, client: ArtifactClient, mebibytes: int) -> dict[str, Any]:
    """Return the resident memory of the server: before, and its largest value with 8 transfers at once."""

    def transfer(name: str, size: int) -> None:
        announced = client.announce(name, size * MEBIBYTE)
        assert put(announced["upload_url"], size) == get(client.download_url(announced["artifact_id"]))

    with ThreadPoolExecutor(AT_ONCE) as threads:  # what the first requests load is not the cost of a large one
        list(threads.map(lambda number: transfer(f"warm-{number}", 1), range(AT_ONCE)))
        (process_id,) = server.pids
        before = servers.resident_bytes(process_id, "VmRSS")
        Path(f"/proc/{process_id}/clear_refs").write_text("5")  # the largest value counts from now
        list(threads.map(lambda number: transfer(f"large-{number}", mebibytes), range(AT_ONCE)))
    after = servers.resident_bytes(process_id, "VmHWM")
    return {
        "transfers": AT_ONCE,
        "mib_each": mebibytes,
        "before_mib": round(before / MEBIBYTE, 1),
        "largest_mib": round(after / MEBIBYTE, 1),
        "more_mib": round((after - before) / MEBIBYTE, 1),
    }


def _with_bucket(cluster: Cluster, mebibytes: int) -> dict[str, Any]:
    """Return the bytes that pass through the server while a client sends to a bucket and receives from it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-bucket-", dir=cluster.state))
    try:
        with s3_server(folder) as url:
            variables = {
                "ARTIFACTS_BUCKET": BUCKET, "ARTIFACTS_ENDPOINT_URL": url, "ARTIFACTS_REGION": REGION,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            }  # fmt: skip
            with servers.serving(cluster, "asgi-1", **variables) as server:
                return _through_server(server, ArtifactClient(server), mebibytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _through_server(server: servers.Serving, client: ArtifactClient, mebibytes: int) -> dict[str, Any]:
    """Return the bytes that the server reads and writes while one artifact goes in and out."""
    warm = client.announce("warm", MEBIBYTE)
    assert put(warm["upload_url"], 1) == get(client.download_url(warm["artifact_id"]))
    (process_id,) = server.pids
    before = _transferred(process_id)
    announced = client.announce("metered", mebibytes * MEBIBYTE)
    sent = put(announced["upload_url"], mebibytes)
    assert sent == get(client.download_url(announced["artifact_id"]))
    through = _transferred(process_id) - before
    return {"mib": mebibytes, "through_server_mb": round(through / 1e6, 2)}


def _transferred(process_id: int) -> int:
    """Return the bytes that a process has read and written, from sockets and files."""
    lines = Path(f"/proc/{process_id}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]) + int(counts["wchar"])


@contextlib.contextmanager
def _bare_application(cluster: Cluster) -> Iterator[str]:
    """Serve the bare application on the file system of the store, and return its address."""
    folder = Path(tempfile.mkdtemp(prefix="bench-bare-", dir=cluster.state))
    (folder / "bare.py").write_text(BARE)
    address = servers.free_address()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(folder), "--no-access-log", "--log-level", "error"]
    command += ["--host", address.host, "--port", str(address.port), "bare:app"]
    with (cluster.logs / "bare.log").open("ab") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            env={"PATH": os.defpath, "BARE_FOLDER": str(folder)},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait(address.url, process)
        yield address.url
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + ANSWERS_WITHIN
    while True:
        with contextlib.suppress(requests.ConnectionError):
            requests.get(url, timeout=5)
            return
        if process.poll() is not None or time.monotonic() > until:
            raise servers.NeverAnswered("the bare application")
        time.sleep(0.05)
