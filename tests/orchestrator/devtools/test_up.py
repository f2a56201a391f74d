"""`manage.py up` serves, mends what dies, refuses in one line, and leaves nothing running however it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import requests
from django.core.management.base import CommandError
from django.db.migrations.loader import MigrationLoader

from config.paths import BASE_DIR
from orchestrator.management.commands.serve import Command as ServeCommand
from orchestrator.management.commands.up import Command as UpCommand
from tests import prepared_cluster
from tests.live_server import eventually
from tests.orchestrator.devtools.conftest import MANAGE, Installation, LaunchedProcess, exposed

pytestmark = pytest.mark.timeout(600)  # the first test of a scene waits until it is there
STARTED_WITHIN = 240.0  # a first start migrates an empty database, and a machine under load takes minutes for it


def up(installation: Installation, *arguments: str, **variables: str) -> tuple[LaunchedProcess, str]:
    """Start it and return it with its address once it says that it serves."""
    launched = installation.manage("up", "--port", "0", *arguments, **variables)
    eventually(lambda: launched.printed("/admin/"), STARTED_WITHIN)
    address = next(re.search(r"http://127\.0\.0\.1:\d+", line) for line in launched.lines if "/admin/" in line)
    return launched, address.group()


def child(installation: Installation, word: str) -> int:
    """The number of the process of this installation that has this word in its command."""
    found = []
    eventually(lambda: found.extend(_those_with(installation, word)) or found)
    return found[0]


def _those_with(installation: Installation, word: str) -> list[int]:
    found = []
    for pid in installation.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def seed(installation: Installation) -> dict[str, str]:
    launched = installation.manage("seed", "--json")
    assert launched.wait() == 0, launched.everything()
    return json.loads(launched.lines[-1])


# --- a first start, which the tests use in this order -----------------------------------------------------------------


@pytest.fixture(scope="module")
def first_start() -> Iterator[tuple[Installation, LaunchedProcess, str]]:
    """A running `up` on an empty state directory, on which `seed` was executed at the same time.

    It starts many processes, so the tests share it; the last ends it.
    """
    installation = Installation()
    try:
        seeding = installation.manage("seed", "--json")  # at the same time: one migrates, the other one waits
        started = up(installation, "--workers", "2")
        assert seeding.wait() == 0, seeding.everything()
        assert json.loads(seeding.lines[-1]) == json.loads((installation.state / "seed.json").read_text())
        yield installation, *started
    finally:
        installation.end()


def test_a_first_start_serves_pages_with_their_styles(first_start):
    _, _, address = first_start
    assert requests.get(f"{address}/healthz", timeout=30).status_code == 200
    eventually(lambda: requests.get(f"{address}/readyz", timeout=30).status_code == 200)
    page = requests.get(f"{address}/admin/login/", timeout=30)
    assert page.status_code == 200
    assert requests.get(address + re.search(r'href="(/[^"]+\.css)', page.text).group(1), timeout=30).ok


def test_the_first_requests_of_the_readme_end_at_the_findings_and_the_address_of_the_run(first_start):
    """As they are printed, with the data that `make up` creates."""
    installation, launched, address = first_start
    readme = (BASE_DIR / "README.md").read_text()
    snippet = re.search(r"^\.venv/bin/python - <<'EOF'\n(.*?\n)EOF$", readme, re.DOTALL | re.MULTILINE)
    program = snippet.group(1).replace("http://127.0.0.1:8000", address)
    (installation.state / ".state").symlink_to(installation.state)
    found = subprocess.run(
        [sys.executable, "-"],
        input=program,
        cwd=installation.state,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (found.returncode, found.stderr) == (0, ""), launched.everything()
    *_, result, last = [line for line in found.stdout.splitlines() if not re.match(r"(high|medium|low) ", line)]
    assert result.endswith("uploaded exit code 0")
    assert re.search(r"^high +credential_read +~/\.ssh/id_ed25519$", found.stdout, re.MULTILINE)
    assert re.fullmatch(rf"{address}/runs/run_\w+/", last)
    assert requests.get(last, timeout=30).status_code == 200


def test_no_other_account_can_read_what_it_has_written(first_start):
    installation, *_ = first_start
    eventually(lambda: list(installation.state.glob("checkpoints/*/*")))
    assert exposed(installation.state) == []


def test_workers_run_beside_the_server_and_an_interrupt_leaves_nothing(first_start):
    installation, launched, _ = first_start
    eventually(lambda: len(_those_with(installation, "runworker")) == 2 + (os.geteuid() == 0))  # one for images
    eventually(lambda: launched.printed("Ctrl-C"))
    launched.signal(signal.SIGINT)
    assert launched.wait() == 0, launched.everything()
    assert not installation.processes()
    assert "PLAIN HTTP" not in launched.everything(), "no other machine reaches 127.0.0.1"


# --- one installation on all addresses, which the tests use in this order ---------------------------------------------


@pytest.fixture(scope="module")
def on_all_addresses() -> Iterator[tuple[Installation, LaunchedProcess, str]]:
    """A running `up` without workers, so that a test can claim. The last test ends it."""
    installation = Installation()
    try:
        prepared_cluster.copy_to(installation.state)
        yield installation, *up(installation, "--workers", "0", HOST="0.0.0.0")
    finally:
        installation.end()


def test_what_the_seed_prints_works_over_http(on_all_addresses):
    """Document 000's round, with the seed's tokens, while `up` runs without workers."""
    running, _, address = on_all_addresses
    by_up = json.loads((running.state / "seed.json").read_text())
    planted = seed(running)
    assert planted == by_up
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


def test_on_all_addresses_it_says_how_it_is_reached_and_warns_and_can_be_reached(on_all_addresses):
    _, launched, _ = on_all_addresses
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


def local_address() -> str:
    """One by which other machines would reach this one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but its own")
        return probe.getsockname()[0]


def test_a_second_one_on_the_same_state_is_refused_in_one_line(on_all_addresses):
    running, _, _ = on_all_addresses
    second = running.manage("up", "--port", "0")
    assert second.wait() == 1
    assert len(second.errors) == 1, second.everything()
    assert "running already" in second.errors[0]


def test_a_server_that_dies_is_started_again(on_all_addresses):
    running, launched, address = on_all_addresses
    os.kill(child(running, "\0serve\0"), signal.SIGKILL)
    eventually(lambda: launched.printed("web was killed by SIGKILL; starting it again (1 of 5)"))
    assert requests.get(f"{address}/healthz", timeout=60).ok, "a client is not refused meanwhile: it waits"


def test_housekeeping_and_a_dispatcher_run_beside_the_server_and_end_with_it(on_all_addresses):
    running, launched, _ = on_all_addresses
    for word in ("runhousekeeping", "rundispatcher"):
        child(running, word)
    for kind in ("scheduler", "housekeeping", "dispatcher"):
        eventually(lambda kind=kind: any(re.search(rf"{kind} \S+ is running", line) for line in launched.lines))
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 0, launched.everything()
    assert not running.processes()


# --- one with the operator's names and a worker, which the tests use in this order -----------------------------------


@pytest.fixture(scope="module")
def with_names() -> Iterator[tuple[Installation, LaunchedProcess]]:
    """A running `up` with ALLOWED_HOSTS and a worker. The last test kills it."""
    installation = Installation()
    try:
        prepared_cluster.copy_to(installation.state)
        names = {"HOST": "0.0.0.0", "ALLOWED_HOSTS": "mine.example,127.0.0.1"}
        yield installation, up(installation, "--workers", "1", **names)[0]
    finally:
        installation.end()


def test_the_operator_s_names_are_not_added_to(with_names):
    _, launched = with_names
    eventually(lambda: launched.printed("PLAIN HTTP"))
    port = re.search(r"http://mine\.example:(\d+)", launched.everything())[1]
    for name, status in (("mine.example", 200), (socket.gethostname(), 400)):
        response = requests.get(f"http://127.0.0.1:{port}/admin/login/", headers={"Host": name}, timeout=30)
        assert (name, response.status_code) == (name, status)


def test_nothing_outlives_it_when_it_is_killed(with_names):
    installation, launched = with_names
    child(installation, "runworker")
    launched.signal(signal.SIGKILL)
    launched.wait()
    eventually(lambda: not installation.processes())


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
    ],
)
def test_a_bad_value_is_named_in_one_line(monkeypatch, capsys, variables, message):
    """In this process, without a database: the command has started nothing. The next test runs the whole command."""
    for name in ("PORT", "WORKERS", "HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        UpCommand().run_from_argv(["manage.py", "up"])
    printed = capsys.readouterr()
    assert (ended.value.code, len(printed.err.splitlines()), printed.out) == (1, 1, "")
    assert message in printed.err


def test_a_taken_port_is_named_in_one_line_and_leaves_nothing(migrated):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launched = migrated.manage("up", "--port", str(taken.getsockname()[1]))
        assert launched.wait() == 1
    assert (len(launched.errors), launched.lines) == (1, []), launched.everything()
    assert "PORT=" in launched.errors[0]
    assert not migrated.processes()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "postgres://user@host:5432/name is needed"),
        ("mysql://x/y", "postgres://user@host:5432/name is needed"),
        ("postgres://u:sesame@127.0.0.1:1/x", "DATABASE_URL: the database cannot be reached at 127.0.0.1"),
    ],
)
def test_a_bad_database_is_named_in_one_line(installation, url, message):
    for command in ("up", "migrate"):
        launched = installation.manage(command, DATABASE_URL=url)
        assert launched.wait() == 1
        assert (len(launched.errors), launched.lines) == (1, []), launched.everything()
        assert message in launched.errors[0]
        assert "sesame" not in launched.everything()
    assert not installation.processes()


OF_THIS_RELEASE = [*MigrationLoader(None).disk_migrations, ("leases", "0099_later")]
BEFORE_THE_RELEASE = [(app, name) for app in ("runtime_jobs", "leases") for name in ("0001_schema", "0002_lean_jobs")]


@pytest.fixture(params=[BEFORE_THE_RELEASE, OF_THIS_RELEASE], ids=["before_the_release", "newer_release"])
def foreign_database(request, database_url: str) -> Iterator[str]:
    """The address of a database that a commit before the release, or a newer release, has migrated."""
    url = urlsplit(database_url)
    with psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True) as session:
        session.execute("DROP DATABASE IF EXISTS foreign_schema WITH (FORCE)")
        session.execute("CREATE DATABASE foreign_schema TEMPLATE template0")
        foreign = url._replace(path="/foreign_schema").geturl()
        with psycopg.connect(foreign) as connection:
            connection.execute("CREATE TABLE runtime_jobs (id bigserial, job_ulid varchar(30))")
            connection.execute(
                "CREATE TABLE django_migrations"
                " (id bigserial, app varchar(255), name varchar(255), applied timestamptz DEFAULT now())"
            )
            for row in request.param:
                connection.execute("INSERT INTO django_migrations (app, name) VALUES (%s, %s)", row)
        yield foreign
        session.execute("DROP DATABASE foreign_schema WITH (FORCE)")


def contents(url: str) -> list[tuple[object, ...]]:
    """Tables, columns and applied migrations."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
        ).fetchall()
        return columns + connection.execute("SELECT app, name FROM django_migrations ORDER BY id").fetchall()


def test_a_database_of_another_schema_is_refused_in_one_line_and_stays_as_it_is(installation, foreign_database):
    before = contents(foreign_database)
    for command in (["migrate"], ["up", "--port", "0"]):
        launched = installation.manage(*command, DATABASE_URL=foreign_database)
        assert launched.wait() == 1
        assert len(launched.errors) == 1, launched.everything()
        assert "made by a newer release or by a commit before 0.1.0" in launched.errors[0]
        assert "DATABASE_URL=" in launched.errors[0]
        assert contents(foreign_database) == before
    assert not installation.processes()


@pytest.mark.parametrize("value", ["70000", "abc", "-1"])
def test_a_web_process_refuses_a_port_that_is_none(value):
    with pytest.raises(CommandError, match="argument --port"):
        ServeCommand().create_parser("manage.py", "serve").parse_args(["--port", value])


def test_a_web_process_that_refuses_its_port_says_so_last(installation):
    launched = installation.manage("serve", "--port", "70000", DATABASE_URL="postgres://u@127.0.0.1:1/x")
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
