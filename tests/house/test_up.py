"""`manage.py up` serves, mends what dies, refuses in one line, and leaves nothing running however it ends."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest
import requests

from tests.house.conftest import Installation, Told, eventually


def up(installation: Installation, *arguments: str) -> tuple[Told, str]:
    """Start it and return it with its address once it says that it serves."""
    told = installation.manage("up", "--port", "0", *arguments)
    eventually(lambda: told.said("console "))
    address = next(re.search(r"http://127\.0\.0\.1:\d+", line) for line in told.lines if "console " in line)
    return told, address.group()


def child(installation: Installation, word: str) -> int:
    """The number of the process of this installation that has this word in its command."""
    found = []
    eventually(lambda: found.extend(_those_with(installation, word)) or found)
    return found[0]


def _those_with(installation: Installation, word: str) -> list[int]:
    return [pid for pid in installation.processes() if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def seed(installation: Installation) -> dict[str, str]:
    told = installation.manage("seed", "--json")
    assert told.wait() == 0, told.everything()
    return json.loads(told.lines[-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted_and_leaves_nothing(installation, number):
    told, address = up(installation, "--workers", "0")
    assert requests.get(f"{address}/healthz", timeout=30).status_code == 200
    eventually(lambda: requests.get(f"{address}/readyz", timeout=30).status_code == 200)
    page = requests.get(f"{address}/admin/login/", timeout=30)
    assert page.status_code == 200
    assert requests.get(address + re.search(r'href="(/[^"]+\.css)', page.text).group(1), timeout=30).ok
    told.signal(number)
    assert told.wait() == 0, told.everything()
    assert not installation.processes()


def test_what_the_seed_prints_works_over_http(installation):
    """Document 000's round, with the seed's tokens, while `up` runs without workers."""
    _, address = up(installation, "--workers", "0")
    planted = seed(installation)
    assert planted == seed(installation)
    owner, name = planted["repo_url"].removesuffix(".git").split("/")[-2:]
    body = {
        "org_slug": planted["org_slug"],
        "project_slug": planted["project_slug"],
        "source": {
            "kind": "github",
            "repo_url": planted["repo_url"],
            "owner": owner,
            "repo": name,
            "git_commit": planted["git_commit"],
        },
        "execution": {"command": ["true"], "timeout_seconds": 60},
        "trigger": {"kind": "manual"},
    }
    tenant = {"Authorization": f"Bearer {planted['api_token']}"}
    job = requests.post(f"{address}/v1/runtime/jobs", json=body, headers=tenant, timeout=30)
    assert job.status_code == 201, job.text
    worker = {"Authorization": f"Bearer {planted['worker_token']}"}
    claim = {"worker_id": planted["worker_id"], "pool": "shared-linux"}
    lease = requests.post(f"{address}/v1/runtime/leases", json=claim, headers=worker, timeout=30)
    assert lease.status_code == 201, lease.text
    assert lease.json()["job"]["job_id"] == job.json()["job_id"]


def test_a_server_that_dies_is_started_again(installation):
    told, address = up(installation, "--workers", "0")
    os.kill(child(installation, "\0serve\0"), signal.SIGKILL)
    eventually(lambda: told.said("web was killed by SIGKILL; starting it again (1 of 5)"))
    eventually(lambda: _answers(address))


def _answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/healthz", timeout=5).ok
    except requests.ConnectionError:
        return False


def test_nothing_outlives_it_when_it_is_killed(installation):
    told, _ = up(installation)
    told.signal(signal.SIGKILL)
    told.wait()
    eventually(lambda: not installation.processes(), 20)


def test_a_worker_of_its_own_claims_and_ends_with_it(installation):
    told, _ = up(installation, "--workers", "2")
    eventually(lambda: len(_those_with(installation, "runworker")) == 2)
    told.signal()
    assert told.wait() == 0, told.everything()
    assert not installation.processes()


def test_a_second_one_on_the_same_state_is_refused_in_one_line(installation):
    up(installation, "--workers", "0")
    second = installation.manage("up", "--port", "0")
    assert second.wait() == 1
    assert len(second.errors) == 1, second.everything()
    assert "running already" in second.errors[0]


def test_a_taken_port_is_told_in_one_line(installation):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = installation.manage("up", "--port", str(taken.getsockname()[1]))
        assert told.wait() == 1
    assert len(told.errors) == 1, told.everything()
    assert "PORT=" in told.errors[0]
    assert not installation.processes()
