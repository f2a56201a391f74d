"""The requests of docs/tutorial.md, one after the other in one shell, print what the tutorial says."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import requests

from config.paths import BASE_DIR
from tests import prepared_cluster
from tests.live_server import eventually
from tests.orchestrator.devtools.conftest import Installation, LaunchedProcess
from tests.orchestrator.devtools.test_up import STARTED_WITHIN, up

pytestmark = pytest.mark.timeout(600)
END = "--- end of the block"
CHANGING = (  # what differs between two runs
    (r"http://127\.0\.0\.1:\d+", "http://SERVER"),
    (r"\b(rtj|wrk|run)_\w+", r"\1_ID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", "TIME"),
    (r"\b\d\d:\d\d:\d\d\.\d{3}\b", "TIME"),
)


class Block(NamedTuple):
    """Commands of the tutorial, the heading above them, and the output below them."""

    section: str
    commands: str
    output: str


def blocks() -> list[Block]:
    text = (BASE_DIR / "docs" / "tutorial.md").read_text()
    found, section = [], ""
    for heading, language, content in re.findall(
        r"^## ([^\n]+)$|^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        if heading:
            section = heading
        elif language == "sh":
            found.append(Block(section, content, ""))
        elif found and found[-1].section == section:
            found[-1] = found[-1]._replace(output=found[-1].output + content)
    return found


def comparable(text: str) -> str:
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text


class Shell:
    """The reader's second terminal."""

    def __init__(self, installation: Installation, address: str) -> None:
        self.scratch = installation.state
        self.process = subprocess.Popen(
            ["bash"], cwd=BASE_DIR, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=installation.environment | {"PORT": address.rpartition(":")[2]}, start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        """End it with the commands that run in it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def run(self, commands: str) -> str:
        """Return what the commands print."""
        commands = commands.replace("/tmp/", f"{self.scratch}/").replace(".venv/bin/python", sys.executable)
        self.process.stdin.write(f"{commands}\necho; echo '{END}'\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, "")
        printed = []
        for line in lines:
            if line.rstrip() == END:
                return "".join(printed).removesuffix("\n")
            printed.append(line)
        raise AssertionError("".join(printed))


def start_second_worker(installation: Installation, address: str) -> LaunchedProcess:
    """Register a worker in the admin and start it, as section 9 says. Returns when it has claimed a job."""
    session = requests.Session()

    def submit(path: str, **values: str) -> str:
        page = session.get(address + path, timeout=60)
        hidden = {"csrfmiddlewaretoken": re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text).group(1)}
        options = {text: key for key, text in re.findall(r'<option value="([^"]+)"[^>]*>([^<]+)</option>', page.text)}
        chosen = {name: options.get(value, value) for name, value in values.items()}
        return session.post(page.url, data=hidden | chosen, headers={"Referer": page.url}, timeout=60).text

    seed = json.loads((installation.state / "seed.json").read_text())
    submit("/admin/login/", username="admin", password=seed["admin_password"])
    page = submit("/admin/workers/worker/add/", slug="second", pool="shared-linux", capacity="1")
    assert "rto_worker_" in page, re.findall(r'class="[^"]*error[^"]*"[^>]*>([^<]+)', page)
    token_file = installation.state / "second.token"
    token_file.touch(mode=0o600)
    done = re.search(r'href="(/admin/workers/worker/[^"]+/change/)"[^>]*>\s*Done', page).group(1)
    worker_page = session.get(address + done, timeout=60).text
    lines = re.search(r"rto_worker_[\w-]+", page).group(), re.search(r"wrk_\w+", worker_page).group()
    token_file.write_text("\n".join(lines))
    arguments = ("--server", address, "--token-file", str(token_file), "--work-dir", str(installation.state / "second"))
    worker = installation.manage("runworker", *arguments)
    eventually(lambda: worker.process.poll() is not None or "job claimed" in worker.everything(), STARTED_WITHIN)
    assert worker.process.poll() is None, worker.everything()
    return worker


@pytest.fixture
def started() -> Iterator[tuple[Installation, str]]:
    """A running `make up` with one worker."""
    installation = Installation()
    try:
        prepared_cluster.copy_to(installation.state)
        launched, address = up(installation, "--workers", "1")
        yield installation, address
        launched.signal(signal.SIGINT)
        launched.wait()
    finally:
        installation.end()


def test_the_requests_print_what_the_tutorial_says(started):
    installation, address = started
    shell, workers = Shell(installation, address), []
    found = blocks()
    assert [block.section[0] for block in found] == ["3", "4", "4", "4", "5", "5", "6", "7", "7", "8", "8", "9", "1"]
    try:
        for block in found:
            if block.section.startswith("9."):
                workers.append(start_second_worker(installation, address))
            printed, expected = comparable(shell.run(block.commands)), comparable(block.output)
            if block.section.startswith("6."):  # it may have started already, as the tutorial says
                printed, expected = (re.sub(r'"status": "\w+"', "", text) for text in (printed, expected))
            if expected:
                assert printed == expected, f"{block.section}\n{block.commands}"
    finally:
        shell.end()
    for worker in workers:
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.everything()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_no_command_needs_curl(page):
    """The required packages do not include it."""
    assert "curl" not in (BASE_DIR / page).read_text()
