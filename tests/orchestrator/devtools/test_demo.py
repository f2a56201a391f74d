"""`manage.py demo` shows a job from end to end, finds what its install script does, and leaves nothing running."""

import json
import re
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import requests

from orchestrator.management.commands.demo import Command
from tests.live_server import eventually
from tests.orchestrator.devtools.conftest import MANAGE, exposed

pytestmark = pytest.mark.timeout(600)  # the first test of a scene waits until it is there
PLANTED = {"credential_read", "lookup_outside", "connection_outside", "write_outside"}


def test_an_interrupted_demo_leaves_nothing_that_the_next_one_trips_over(demos):
    assert demos.interrupted.process.returncode == 130, demos.interrupted.everything()
    assert not demos.left_by_interrupted
    assert demos.complete.process.returncode == 0, demos.complete.everything()


def test_the_demo_uploads_its_run_and_finds_what_was_planted(demos):
    launched = demos.complete
    assert launched.process.returncode == 0, launched.everything()
    result = json.loads(launched.lines[-1])
    assert set(result) == {"job_id", "status", "ingest_run_id", "exit_code", "counts", "suspicious"}
    assert (result["status"], result["exit_code"]) == ("uploaded", 0)
    assert set(result["suspicious"]) >= PLANTED
    assert result["counts"]["suspicious_activity"] >= len(PLANTED)
    assert not demos.left_by_complete
    assert "\x1b" not in launched.everything(), "there is no terminal"
    assert max(map(len, launched.lines[:-1])) <= 100
    assert not [line for line in launched.lines if line != line.rstrip()]


def test_no_other_account_can_read_what_it_has_written(demos):
    assert exposed(demos.installation.state) == []


def test_what_the_demo_prints_last_works_with_make_up(demos):
    """The address, user name and password that it prints, in the server of the command that it prints."""
    installation, launched = demos.installation, demos.complete
    shown = dict(
        line.strip().split(maxsplit=1) for line in launched.lines if re.match(r"  (user|password|this) ", line)
    )
    assert f"  make up STATE_DIR={installation.state}" in launched.lines
    page = urlsplit(shown["this"].removeprefix("run").strip()).path

    served = installation.manage("up", "--port", "0", "--workers", "0")
    eventually(lambda: served.printed("/admin/"), 240)
    address = re.search(r"http://127\.0\.0\.1:\d+", served.everything()).group()
    with requests.Session() as browser:
        form = browser.get(address + page, timeout=30)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text).group(1)
        login = {
            "username": shown["user"].removeprefix("name").strip(),
            "password": shown["password"],
            "csrfmiddlewaretoken": token,
        }
        opened = browser.post(form.url, data=login, headers={"Referer": form.url}, timeout=30)
    assert (opened.status_code, urlsplit(opened.url).path) == (200, page)
    assert "credential_read" in opened.text
    api_token = json.loads((installation.state / "seed.json").read_text())["api_token"]
    listed = requests.get(f"{address}/v1/jobs", headers={"Authorization": f"Bearer {api_token}"}, timeout=30)
    assert listed.status_code == 200
    found = [job["job_id"] for job in listed.json()["results"]]
    assert json.loads(launched.lines[-1])["job_id"] in found
    assert len(found) == 2, "the other one is of the interrupted demo"
    served.signal()
    assert served.wait() == 0, served.everything()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Run the command in this process, without a database, and return its lines on standard error."""
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "demo", *arguments])
    assert ended.value.code == 1
    return capsys.readouterr().err.splitlines()


def test_a_repository_needs_a_commit_and_a_command(capsys):
    lines = refused(capsys, "--repo", "https://github.com/owner/name")
    assert "REPO=… COMMIT=… CMD=" in lines[-1]


def test_a_command_that_no_shell_could_read_is_reported_in_one_line(capsys):
    lines = refused(capsys, "--repo", "https://github.com/owner/name", "--commit", "main", "--cmd", "sh -c '")
    assert lines == ["CommandError: CMD: No closing quotation"]


def test_a_refused_job_is_reported_in_one_line(migrated):
    launched = migrated.manage("demo", "--repo", "https://github.com/owner/name", "--commit", "main", "--cmd", "true")
    assert launched.wait() == 1
    assert "git_commit" in launched.errors[-1]
    assert not migrated.processes()


def test_help_starts_nothing(installation):
    subprocess.run([sys.executable, MANAGE, "demo", "--help"], env=installation.environment, check=True)
    assert [item.name for item in installation.state.iterdir() if item.name != "secret_key"] == ["throwaway"]
