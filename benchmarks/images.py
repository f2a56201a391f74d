"""Pulls and pushes of large blobs: speed against CNCF Distribution of the same run, and memory of our server.

`docker-registry` is Debian's package. Both servers store files in the same file system, and send the blob to the same
client, in turns.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from orchestrator.core.cause import Cause
from orchestrator.services import credentials
from runtime_jobs.events import Actor
from runtime_jobs.models import Project
from workers.registry.tokens import PROJECT_PREFIX

BLOCK = 1 << 20
MEBIBYTE = 1 << 20
PULLED = 256  # MiB
LARGE = 1024  # MiB, for the memory
ROUNDS = 7
ANSWERS_WITHIN = 30.0
OPERATOR = Actor("operator", "bench")


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """`pull_vs_registry`: MB/s of ours ÷ docker-registry's. `image_memory`: server after 1 GiB in and out ÷ before."""
    is_full = sizes.name == "full"
    pulled, large = (PULLED, LARGE) if is_full else (PULLED // 4, LARGE // 4)
    project = _project()
    with servers.serving(cluster, "asgi-1") as server:
        place = RegistryClient(server.address.url, project.public_slug, _bearer(server.address.url, project))
        memory = _memory(server, place, large)
        digest = place.push(pulled)
        with _distribution(cluster) as other:
            rates: dict[str, list[float]] = {"ours": [], "docker-registry": []}
            other_digest = other.push(pulled) if other else ""
            for _ in range(ROUNDS if is_full else 3):
                rates["ours"].append(place.pull(digest, pulled))
                if other:
                    rates["docker-registry"].append(other.pull(other_digest, pulled))
    found: dict[str, Any] = {
        "mib": pulled,
        "rounds": {name: [round(rate) for rate in each] for name, each in rates.items()},
    }
    if not other:
        found["missing"] = "docker-registry is not installed"
    ratio = statistics.median(rates["ours"]) / statistics.median(rates["docker-registry"]) if other else None
    return {
        "pull_vs_registry": None if ratio is None else round(ratio, 2),
        "image_memory": memory["ratio"],
        "images": found | {"memory": memory},
    }


class RegistryClient:
    """A repository of a registry that speaks the OCI distribution API."""

    def __init__(self, url: str, name: str, bearer: str = "") -> None:
        self.netloc, self.name = urlsplit(url).netloc, name
        self.headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}

    def push(self, mebibytes: int) -> str:
        """Push a blob of this size as docker does: POST, a chunked PATCH, PUT. Returns its digest."""
        hasher = hashlib.sha256()
        seed = os.urandom(BLOCK - 8)

        def blocks() -> Iterator[bytes]:
            for number in range(mebibytes):
                block = number.to_bytes(8, "big") + seed
                hasher.update(block)
                yield block

        place = self._call("POST", f"/v2/{self.name}/blobs/uploads/", 202)
        place = self._call("PATCH", place, 202, body=blocks())
        digest = f"sha256:{hasher.hexdigest()}"
        joined = "&" if "?" in place else "?"
        self._call("PUT", f"{place}{joined}{urlencode({'digest': digest})}", 201)
        return digest

    def pull(self, digest: str, mebibytes: int) -> float:
        """Pull a blob, and return the MB/s."""
        connection = http.client.HTTPConnection(self.netloc, timeout=120)
        buffer, size = bytearray(BLOCK), 0
        began = time.perf_counter()
        connection.request("GET", f"/v2/{self.name}/blobs/{digest}", headers=self.headers)
        response = connection.getresponse()
        while count := response.readinto(buffer):
            size += count
        seconds = time.perf_counter() - began
        connection.close()
        assert (response.status, size) == (200, mebibytes * MEBIBYTE), (response.status, size)
        return size / 1e6 / seconds

    def _call(self, method: str, place: str, status: int, *, body: Any = None) -> str:
        """Send a request, and return the path and query of the `Location`."""
        connection = http.client.HTTPConnection(self.netloc, timeout=300)
        parts = urlsplit(place)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        if body is None:
            connection.request(method, target, b"", self.headers | {"Content-Length": "0"})
        else:
            connection.request(method, target, body, self.headers, encode_chunked=True)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.status == status, (method, target, response.status, text[:300])
        return response.headers["Location"]


def _project() -> Project:
    tenants.settled("images", organizations=["acme"], workers=1)
    return Project.objects.get(organization__slug="acme")


def _bearer(url: str, project: Project) -> str:
    """Return a token of the registry, from the endpoint that docker clients use. It is valid for five minutes."""
    _, key = credentials.create_api_token(
        organization=project.organization, project=project, name="bench", scopes=[], cause=Cause(OPERATOR)
    )
    assert key.startswith(PROJECT_PREFIX)
    form = urlencode(
        {"grant_type": "password", "password": key, "scope": f"repository:{project.public_slug}:pull,push"}
    )
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", "/v0/auth/oci/token", form, {"Content-Type": "application/x-www-form-urlencoded"})
    response = connection.getresponse()
    return str(json.loads(response.read())["token"])


def _memory(server: servers.Serving, place: RegistryClient, mebibytes: int) -> dict[str, Any]:
    """Return the resident memory of the server: before, and its largest value while a large blob goes in and out."""
    place.pull(place.push(1), 1)  # what the first request of its kind loads is not the cost of a large one
    (process_id,) = server.pids
    before = servers.resident_bytes(process_id, "VmRSS")
    Path(f"/proc/{process_id}/clear_refs").write_text("5")  # the largest value counts from now
    place.pull(place.push(mebibytes), mebibytes)
    after = servers.resident_bytes(process_id, "VmHWM")
    return {
        "mib": mebibytes,
        "before_mb": before // 10**6,
        "largest_mb": after // 10**6,
        "ratio": round(after / before, 3),
    }


@contextlib.contextmanager
def _distribution(cluster: Cluster) -> Iterator[RegistryClient | None]:
    """Start Debian's docker-registry on a folder of its own; None if it is not installed."""
    if shutil.which("docker-registry") is None:
        yield None
        return
    address = servers.free_address()
    folder = cluster.state / "docker-registry"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"{address.host}:{address.port}"},
    }
    configuration = folder / "config.yml"
    configuration.write_text(json.dumps(settings))  # JSON is YAML
    with (cluster.logs / "docker-registry.log").open("ab") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "docker-registry", "serve", str(configuration)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait(address, process)
        yield RegistryClient(address.url, "bench")
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(address: Any, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + ANSWERS_WITHIN
    while True:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(address.host, address.port, timeout=5)
            connection.request("GET", "/v2/")
            connection.getresponse().read()
            return
        if process.poll() is not None or time.monotonic() > until:
            raise servers.NeverAnswered("docker-registry")
        time.sleep(0.05)
