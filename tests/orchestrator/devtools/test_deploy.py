"""The commands that deploy/ and Procfile name exist and take the options that they are given."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from django.core.management import get_commands, load_command_class

from orchestrator.core.clock_beat import ClockBeat
from orchestrator.webhooks.models import DeliveryTry
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, WorkerFactory, api_token
from tests.live_server import eventually
from tests.orchestrator.repositories.world import Origin, added
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

ROOT = Path(__file__).resolve().parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def commands() -> dict[str, str]:
    found = {unit.name: re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE).group(1) for unit in UNITS}
    lines = [line for line in (ROOT / "Procfile").read_text().splitlines() if not line.startswith("#")]
    return found | {f"Procfile {name}": line for name, _, line in (entry.partition(": ") for entry in lines)}


@pytest.mark.parametrize("where", commands())
def test_every_command_takes_its_options(where):
    line = commands()[where]
    options = re.findall(r"(?<=\s)--[a-z-]+", line)
    name = re.search(r"manage\.py (\w+)", line).group(1)
    known = load_command_class(get_commands()[name], name).create_parser("manage.py", name).format_help()
    for option in options:
        assert option in known, f"{where}: {option}"


def test_every_setting_that_the_docs_name_exists():
    settings = (ROOT / "docs" / "settings.md").read_text()
    pages = ("operations", "runbooks", "backup-and-upgrade", "scaling", "metrics")
    texts = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in pages)
    examples = "".join(path.read_text() for path in (ROOT / "deploy" / "systemd").glob("*.env.example"))
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", texts))
    named |= set(re.findall(r"^([A-Z_]+?)(?:_FILE)?=", examples, re.MULTILINE))
    own = {"SERVER_URL", "PIP_INDEX_URL", "LISTEN_FDS", "BODY_LIMITS"}  # of the worker's unit, pip, systemd, the code
    assert {name for name in named - own if f"`{name}`" not in settings} == set()


def test_the_units_run_nothing_as_root_but_the_worker():
    without = [unit.name for unit in UNITS if "\nUser=runtime-orchestrator\n" not in unit.read_text()]
    assert without == ["runtime-orchestrator-worker.service"]


def test_web_scheduler_and_commands_share_the_folder_of_outputs():
    """Else the scheduler finds no output of a job whose web process has died, and fails the job."""
    example = (ROOT / "deploy" / "systemd" / "server.env.example").read_text()
    (folder,) = re.findall(r"^STATE_DIR=(.+)$", example, re.MULTILINE)
    for unit in UNITS:
        text = unit.read_text()
        if "worker" not in unit.name:
            assert f"\nEnvironment=STATE_DIR={folder}\n" in text, unit.name
            assert f"\nStateDirectory={Path(folder).name}\n" in text, unit.name


# --- what the units allow is what the programs need -------------------------------------------------------------------

SERVED = [unit for unit in UNITS if "worker" not in unit.name]
LIMITS = (
    "MemoryMax",
    "MemoryHigh",
    "TasksMax",
    "SystemCallFilter",
    "RestrictAddressFamilies",
    "MemoryDenyWriteExecute",
)


def settings_of(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", SERVED, ids=lambda unit: unit.name)
def test_the_units_of_the_server_are_bounded(unit):
    assert [name for name in LIMITS if not settings_of(unit, name)] == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", SERVED, ids=lambda unit: unit.name)
def test_systemd_understands_every_line_and_rates_the_unit_well(unit, tmp_path):
    copy = tmp_path / unit.name.replace("@", "@8000")
    copy.write_text(unit.read_text().replace("/opt/runtime-orchestrator/.venv/bin/", "/bin/true #"))
    for found in unit.parent.glob("*.socket"):
        (tmp_path / found.name).write_text(found.read_text())
    launched = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert not [line for line in launched.stderr.splitlines() if unit.name.partition("@")[0] in line], launched.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout[-400:]


def allowed_calls(unit: Path) -> set[str]:
    """The system calls of the unit's filter: lists in their order, `~` takes away."""
    found: set[str] = set()
    for line in settings_of(unit, "SystemCallFilter"):
        named = {call for word in line.removeprefix("~").split() for call in calls_of(word)}
        found = found - named if line.startswith("~") else found | named
    return found


def calls_of(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    launched = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True)
    words = [
        line.strip() for line in launched.stdout.splitlines()[1:] if line.strip() and not line.strip().startswith("#")
    ]
    return {call for inner in words for call in calls_of(inner)}


def traced(unit: Path, command: list[str], report: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run the command and report what the unit would forbid, and sockets and executable memory.

    The process is the command's own (`-D`), so that signals reach it.
    """
    forbidden = "!" + ",".join(f"?{call}" for call in sorted(allowed_calls(unit) - {"socket", "mprotect", "mmap"}))
    strace = ["strace", "-D", "--seccomp-bpf", "-f", "-qq", "-o", str(report), "-e", f"trace={forbidden}"]
    return subprocess.Popen([*strace, *command], cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Return when the command and its tracer have ended: the report is whole."""
    tracer = Path("/proc") / re.search(r"TracerPid:\t(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]
    process.terminate()
    process.wait(60)

    def tracer_has_ended() -> bool:
        try:
            return (tracer / "stat").read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    eventually(tracer_has_ended, 60)


def violations(unit: Path, report: Path) -> list[str]:
    assert "mmap(" in report.read_text(), "nothing was traced"
    families = {word for line in settings_of(unit, "RestrictAddressFamilies") for word in line.split()}
    return [line for line in report.read_text().splitlines() if not is_allowed(line, families)]


def is_allowed(line: str, families: set[str]) -> bool:
    call = re.search(r"(\w+)\(", line)
    if call is None or "resumed>" in line or "+++" in line or "---" in line:
        return True
    if call[1] == "socket":
        return re.search(r"socket\((\w+)", line)[1] in families
    if call[1] in {"mmap", "mprotect"}:
        return not ("PROT_EXEC" in line and "PROT_WRITE" in line)
    return False


NEEDS_TOOLS = pytest.mark.skipif(
    not (shutil.which("systemd-analyze") and shutil.which("strace")), reason="needs systemd-analyze and strace"
)


@NEEDS_TOOLS
@pytest.mark.django_db(transaction=True)
def test_the_web_server_makes_no_call_that_its_unit_forbids(tmp_path, database_url):
    """Through a start, a submit, a claim that waits, metrics, a password that is hashed, and a restart."""
    unit, report = next(unit for unit in SERVED if "web" in unit.name), tmp_path / "report"
    organization = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=organization)
    worker = WorkerFactory()
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    process = traced(unit, command, report, {"STATE_DIR": str(tmp_path / "state"), "DATABASE_URL": database_url})
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: _is_up(process, url), 90)
        mine = {"Authorization": f"Bearer {api_token(organization)}"}
        claim = {"worker_id": worker.worker_id, "wait_seconds": 1}
        theirs = {"Authorization": f"Bearer {worker.token}"}
        assert requests.post(f"{url}/v1/runtime/leases", json=claim, headers=theirs, timeout=60).status_code == 204
        assert requests.post(f"{url}/v1/runtime/jobs", json=SUBMIT_BODY, headers=mine, timeout=60).status_code == 201
        assert requests.get(f"{url}/metrics", timeout=60).status_code == 200
        with requests.Session() as browser:
            token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', browser.get(f"{url}/login/", timeout=60).text)[1]
            guess = {"username": "olga", "password": "guess", "csrfmiddlewaretoken": token}
            assert "password is wrong" in browser.post(f"{url}/login/", guess, timeout=60).text
        process.send_signal(signal.SIGHUP)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        eventually(children.read_text)
        eventually(lambda: not children.read_text(), 120)  # the process serves again, and has ended the interim one
        assert _is_up(process, url)
    finally:
        ended(process)
    assert violations(unit, report) == []


def _is_up(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None
    with contextlib.suppress(requests.ConnectionError, requests.Timeout):
        return requests.get(f"{url}/healthz", timeout=5).ok
    return False


@NEEDS_TOOLS
@pytest.mark.django_db(transaction=True)
def test_housekeeping_and_a_fetch_make_no_call_that_their_units_forbid(tmp_path, database_url):
    """Through the copy of a repository by the one, and a clone of it from the other."""
    origin = Origin(tmp_path / "origins" / "web.git")
    origin.commit({"README": b"1"})
    repository = added(origin.path)
    environment = {"STATE_DIR": str(tmp_path / "state"), "DATABASE_URL": database_url}
    environment |= {"REPOSITORY_ROOT": str(tmp_path / "origins"), "MIRROR_DIR": str(tmp_path / "mirrors")}
    unit, report = next(unit for unit in SERVED if "housekeeping" in unit.name), tmp_path / "report"
    process = traced(unit, [sys.executable, "manage.py", "runhousekeeping"], report, environment)
    try:
        eventually(lambda: (repository.refresh_from_db(), repository.mirrored_at)[1], 120)
    finally:
        ended(process)
    assert violations(unit, report) == []
    unit, report = next(unit for unit in SERVED if "web" in unit.name), tmp_path / "report of web"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "manage.py", "serve", "--port", str(port)]
    process = traced(unit, command, report, environment)
    try:
        eventually(lambda: _is_up(process, f"http://127.0.0.1:{port}"), 90)
        subprocess.run(["git", "clone", "-q", f"http://127.0.0.1:{port}/acme/web.git", tmp_path / "copy"], check=True)
    finally:
        ended(process)
    assert (tmp_path / "copy" / "README").read_text() == "1"
    assert violations(unit, report) == []


@NEEDS_TOOLS
@pytest.mark.django_db(transaction=True)
def test_the_clock_makes_no_call_that_its_unit_forbids(tmp_path, database_url):
    unit, report = next(unit for unit in SERVED if "clock" in unit.name), tmp_path / "report"
    environment = {"STATE_DIR": str(tmp_path / "state"), "DATABASE_URL": database_url}
    process = traced(unit, [sys.executable, "manage.py", "runclock"], report, environment)
    try:
        eventually(ClockBeat.objects.exists, 90)
    finally:
        ended(process)
    assert violations(unit, report) == []


@NEEDS_TOOLS
@pytest.mark.django_db(transaction=True)
def test_a_dispatcher_makes_no_call_that_its_unit_forbids(tmp_path, database_url):
    """Through a name that is resolved, and a connection that is refused."""
    unit, report = next(unit for unit in SERVED if "dispatcher" in unit.name), tmp_path / "report"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    make_deliveries(make_webhook(url=f"http://localhost:{port}/"))
    environment = {"DATABASE_URL": database_url, "WEBHOOK_NETWORKS": "127.0.0.0/8,::1/128"}
    process = traced(unit, [sys.executable, "manage.py", "rundispatcher"], report, environment)
    try:
        eventually(DeliveryTry.objects.exists, 90)
    finally:
        ended(process)
    assert violations(unit, report) == []
