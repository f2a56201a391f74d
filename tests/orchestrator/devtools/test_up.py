"""`manage.py up` serves, mends what dies, refuses in one line, and leaves nothing running however it ends."""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import requests

from tests.live_server import eventually
from tests.orchestrator.devtools.conftest import MANAGE, Installation, LaunchedProcess


def up(installation: Installation, *arguments: str) -> tuple[LaunchedProcess, str]:
    """Start it and return it with its address once it says that it serves."""
    launched = installation.manage("up", "--port", "0", *arguments)
    eventually(lambda: launched.printed("/admin/"))
    address = next(re.search(r"http://127\.0\.0\.1:\d+", line) for line in launched.lines if "/admin/" in line)
    return launched, address.group()


def child(installation: Installation, word: str) -> int:
    """The number of the process of this installation that has this word in its command."""
    found = []
    eventually(lambda: found.extend(_those_with(installation, word)) or found)
    return found[0]


def _those_with(installation: Installation, word: str) -> list[int]:
    return [pid for pid in installation.processes() if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def seed(installation: Installation) -> dict[str, str]:
    launched = installation.manage("seed", "--json")
    assert launched.wait() == 0, launched.everything()
    return json.loads(launched.lines[-1])


@pytest.mark.parametrize(("number", "before"), [(signal.SIGINT, "installation"), (signal.SIGTERM, "migrated")])
def test_it_serves_until_it_is_interrupted_and_leaves_nothing(request, number, before):
    installation = request.getfixturevalue(before)
    launched, address = up(installation, "--workers", "0")
    assert requests.get(f"{address}/healthz", timeout=30).status_code == 200
    eventually(lambda: requests.get(f"{address}/readyz", timeout=30).status_code == 200)
    page = requests.get(f"{address}/admin/login/", timeout=30)
    assert page.status_code == 200
    assert requests.get(address + re.search(r'href="(/[^"]+\.css)', page.text).group(1), timeout=30).ok
    launched.signal(number)
    assert launched.wait() == 0, launched.everything()
    assert not installation.processes()


def test_what_the_seed_prints_works_over_http(migrated):
    """Document 000's round, with the seed's tokens, while `up` runs without workers."""
    _, address = up(migrated, "--workers", "0")
    planted = seed(migrated)
    assert planted == seed(migrated)
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


def test_a_server_that_dies_is_started_again(migrated):
    launched, address = up(migrated, "--workers", "0")
    os.kill(child(migrated, "\0serve\0"), signal.SIGKILL)
    eventually(lambda: launched.printed("web was killed by SIGKILL; starting it again (1 of 5)"))
    eventually(lambda: _answers(address))


def _answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/healthz", timeout=5).ok
    except requests.ConnectionError:
        return False


def test_nothing_outlives_it_when_it_is_killed(migrated):
    launched, _ = up(migrated)
    launched.signal(signal.SIGKILL)
    launched.wait()
    eventually(lambda: not migrated.processes(), 20)


def test_a_worker_of_its_own_claims_and_ends_with_it(migrated):
    launched, _ = up(migrated, "--workers", "2")
    eventually(lambda: len(_those_with(migrated, "runworker")) == 2)
    launched.signal()
    assert launched.wait() == 0, launched.everything()
    assert not migrated.processes()


def test_housekeeping_runs_beside_the_server_and_ends_with_it(migrated):
    launched, _ = up(migrated, "--workers", "0")
    child(migrated, "runhousekeeping")
    eventually(lambda: launched.printed("is running"))
    launched.signal()
    assert launched.wait() == 0, launched.everything()
    assert not migrated.processes()


def test_a_dispatcher_runs_beside_the_server_and_ends_with_it(migrated):
    launched, _ = up(migrated, "--workers", "0")
    child(migrated, "rundispatcher")
    launched.signal()
    assert launched.wait() == 0, launched.everything()
    assert not migrated.processes()


def test_a_second_one_on_the_same_state_is_refused_in_one_line(migrated):
    up(migrated, "--workers", "0")
    second = migrated.manage("up", "--port", "0")
    assert second.wait() == 1
    assert len(second.errors) == 1, second.everything()
    assert "running already" in second.errors[0]


def test_a_taken_port_is_named_in_one_line(installation):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launched = installation.manage("up", "--port", str(taken.getsockname()[1]))
        assert launched.wait() == 1
    assert len(launched.errors) == 1, launched.everything()
    assert "PORT=" in launched.errors[0]
    assert not installation.processes()


# --- bad values are one line, and others reach it ---------------------------------------------------------------------

NOT_A_NUMBER = "a number from 0 to"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PORT": "abc"}, f"PORT='abc': {NOT_A_NUMBER} 65535 is needed"),
        ({"PORT": "70000"}, f"PORT='70000': {NOT_A_NUMBER} 65535 is needed"),
        ({"WORKERS": "x"}, f"WORKERS='x': {NOT_A_NUMBER} 64 is needed"),
        ({"WORKERS": "-1"}, f"WORKERS='-1': {NOT_A_NUMBER} 64 is needed"),
        ({"HOST": "no.such.host.invalid"}, "choose one with HOST="),
        ({"HOST": "203.0.113.9"}, "choose one with HOST="),
        ({"DATABASE_URL": "nonsense"}, "postgres://user@host:5432/name is needed"),
        ({"DATABASE_URL": "mysql://x/y"}, "postgres://user@host:5432/name is needed"),
        ({"DATABASE_URL": "postgres://u:sesame@127.0.0.1:1/x"}, "DATABASE_URL: the database cannot be reached at 127.0.0.1"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_in_one_line(installation, variables, message):
    for command in ("up", "migrate") if "DATABASE_URL" in variables else ("up",):
        launched = installation.manage(command, **variables)
        assert launched.wait() == 1
        assert (len(launched.errors), launched.lines) == (1, []), launched.everything()
        assert message in launched.errors[0]
        assert "sesame" not in launched.everything()
    assert not installation.processes()


@pytest.mark.parametrize("value", ["70000", "abc", "-1"])
def test_a_web_process_refuses_a_port_that_is_none(installation, value):
    launched = installation.manage("serve", "--port", value)
    assert launched.wait() == 2
    assert "argument --port" in launched.errors[-1], launched.everything()


@pytest.mark.root
@pytest.mark.parametrize("size", ["4k", "2m"])
def test_a_full_disk_at_the_first_start_is_named_in_one_line(installation, size):
    """Without room for anything, and with room for the secret key alone."""
    state = installation.state / "small"
    state.mkdir()
    installation.state.chmod(0o755)  # else root's PostgreSQL has its home elsewhere
    mount = f'mount -t tmpfs -o size={size} tmpfs {state} && head -c 4096 /dev/zero >{state}/filler; exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, str(MANAGE), "up", "--workers", "0"]
    launched = installation.run(command, STATE_DIR=str(state), PORT="0")
    assert launched.wait() == 1
    assert (len(launched.errors), launched.lines) == (1, []), launched.everything()
    assert re.search("[Nn]o space left on device", launched.errors[0])


def local_address() -> str:
    """One by which other machines would reach this one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its own")
        return probe.getsockname()[0]


def test_on_all_addresses_it_says_how_it_is_reached_and_warns_and_can_be_reached(migrated):
    launched = migrated.manage("up", "--port", "0", "--workers", "0", HOST="0.0.0.0")
    eventually(lambda: launched.printed("ALLOWED_HOSTS=name,name"))
    address = local_address()
    port = re.search(r"http://127\.0\.0\.1:(\d+)/admin/", launched.everything())[1]
    assert f"http://{address}:{port}" in launched.everything()
    assert "PLAIN HTTP" in launched.everything()
    for name in (address, socket.gethostname(), "127.0.0.1"):
        response = requests.get(f"http://{address}:{port}/admin/login/", headers={"Host": f"{name}:{port}"}, timeout=30)
        assert (name, response.status_code) == (name, 200)
    refusal = requests.get(f"http://{address}:{port}/admin/login/", headers={"Host": "rebound.example"}, timeout=30)
    assert refusal.status_code == 400
    assert "ALLOWED_HOSTS" in refusal.json()["detail"]


def test_on_one_s_own_address_there_is_no_warning(migrated):
    launched, _ = up(migrated, "--workers", "0")
    eventually(lambda: launched.printed("Ctrl-C"))
    assert "PLAIN HTTP" not in launched.everything()


def test_the_operator_s_names_are_not_added_to(migrated):
    launched = migrated.manage(
        "up", "--port", "0", "--workers", "0", HOST="0.0.0.0", ALLOWED_HOSTS="mine.example,127.0.0.1"
    )
    eventually(lambda: launched.printed("PLAIN HTTP"))
    port = re.search(r"http://mine\.example:(\d+)", launched.everything())[1]
    for name, status in (("mine.example", 200), (socket.gethostname(), 400)):
        response = requests.get(f"http://127.0.0.1:{port}/admin/login/", headers={"Host": name}, timeout=30)
        assert (name, response.status_code) == (name, status)
