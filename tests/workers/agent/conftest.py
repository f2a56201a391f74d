"""Fixtures of the agent's tests: a scripted server, a lease, a client, a repository to check out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.repositories import Repository
from tests.workers.agent.scripted import ScriptedServer, scripted_server
from workers.agent.credentials import TokenFile
from workers.agent.http import wire
from workers.agent.http.client import OrchestratorClient

LEASE_ID = "rtl_01jcapabilitythatmustnotleak"
TOKEN = "rto_worker_thatmustnotleakeither"
COMMIT = "a" * 40


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as scripted:
        yield scripted


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\nwrk_01jworker\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def client(server: ScriptedServer, token_file: Path) -> Iterator[OrchestratorClient]:
    client = OrchestratorClient(server.url, TokenFile(token_file), "01jsession")
    yield client
    client.close()


def claim_body(**changes: Any) -> dict[str, Any]:
    """The answer to a claim; `execution__timeout_seconds=1` changes a member of a member of the job."""
    job: dict[str, Any] = {
        "job_id": "rtj_01jjob",
        "org_slug": "acme",
        "project_slug": "web",
        "source": {
            "kind": "github",
            "repo_url": "https://github.com/acme/web.git",
            "owner": "acme",
            "repo": "web",
            "ref": "refs/heads/main",
            "git_commit": COMMIT,
            "pull_request_number": 7,
        },
        "execution": {
            "working_directory": ".",
            "command": ["true"],
            "timeout_seconds": 60,
            "allow_network": False,
            "allow_exec": True,
            "least_isolation": "namespaces",
            "egress": [],
        },
        "trigger": {"kind": "manual", "actor": "ann"},
        "retry_of": None,
        "fence": 1,
        "heartbeat_interval_seconds": 20,
        "lease_ttl_seconds": 120,
        "acknowledge_within_seconds": 30,
    }
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if inner:
            job[outer] = job[outer] | {inner: value}
        else:
            job[outer] = value
    return {"lease_id": LEASE_ID, "lease_expires_at": "2026-01-01T00:00:00Z", "job": job}


def a_lease(**changes: Any) -> wire.LeasePayload:
    return wire.lease(claim_body(**changes))


@pytest.fixture
def lease() -> wire.LeasePayload:
    return a_lease()


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other accounts can walk through, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="rto-agent-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def owner() -> int | None:
    """The account that checkouts belong to: another one if we may, else our own."""
    return 61999 if os.geteuid() == 0 else None


@pytest.fixture
def repository(open_dir: Path) -> Repository:
    return Repository(open_dir / "mirrors" / "acme" / "web.git")
