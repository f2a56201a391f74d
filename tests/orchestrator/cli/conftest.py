"""The command line against a real server, as a function of the test's process or as a process of its own."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from config.paths import BASE_DIR
from orchestrator.cli.main import main
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token
from tests.live_server import serving


@dataclass
class Finished:
    """The end of a command and its output."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs `stella` with a server and a token in the environment, and nothing else of the caller's settings."""

    monkeypatch: pytest.MonkeyPatch
    home: str
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: str = "", **variables: str) -> Finished:
        """Run a command to its end, in this process."""
        out, err = io.StringIO(), io.StringIO()
        with self.monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            for name in ("STELLA_SERVER", "STELLA_TOKEN", "STELLA_TOKEN_FILE", "XDG_CONFIG_HOME"):
                patch.delenv(name, raising=False)
            for name, value in (self.variables | {"HOME": self.home} | variables).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            code = main(words)
        return Finished(code, out.getvalue(), err.getvalue())

    def start(self, *words: str, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        """Start a command as a process. It is read by `communicate`."""
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", *words],
            cwd=BASE_DIR,
            env={**os.environ, "HOME": self.home, **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """Without a server."""
    return Shell(monkeypatch, str(tmp_path))


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url) as found:
        yield found


@pytest.fixture
def organization():
    return OrganizationFactory(slug="acme-corp")


@pytest.fixture
def project(organization):
    return ProjectFactory(organization=organization)


@pytest.fixture
def token(project):
    return api_token(project.organization)


@pytest.fixture
def worker():
    return WorkerFactory()


@pytest.fixture
def stella(shell, server, token):
    """With the server and a token of all scopes."""
    shell.variables = {"STELLA_SERVER": server.url, "STELLA_TOKEN": token}
    return shell
