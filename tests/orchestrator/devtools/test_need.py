"""A missing program is named in one line with the command that installs it, or installed when that is allowed."""

import os
import subprocess
from pathlib import Path

import pytest

NEED = Path(__file__).resolve().parents[3] / "deploy" / "need"


@pytest.fixture
def machine(tmp_path) -> Path:
    """A machine that has only what a test puts there; `apt-get` writes down how it was called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "grep", "tail", "mktemp", "rm", "ls", "touch", "chmod", "cat"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    script(
        programs / "apt-get",
        f'echo "$*" >> {tmp_path}/calls\ncase "$*" in *install*) touch {programs}/tool;'
        f" chmod 755 {programs}/tool;; esac",
    )
    return tmp_path


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def need(machine: Path, user: int, *pairs: str) -> subprocess.CompletedProcess[str]:
    script(machine / "bin" / "id", f"echo {user}")
    environment = {"PATH": str(machine / "bin"), "TMPDIR": str(machine)}
    return subprocess.run([NEED, *pairs], env=environment, capture_output=True, text=True, check=False)


def test_nothing_missing_is_silent(machine):
    launched = need(machine, 0, "sh=dash", "grep=grep")
    assert (launched.returncode, launched.stdout, launched.stderr) == (0, "", "")


def test_an_ordinary_user_hears_in_one_line_what_is_missing(machine):
    launched = need(machine, 1000, "sh=dash", "tool=tool-package", "other=tool-package", "third=another")
    assert launched.returncode == 1
    command = "apt-get install --yes --no-install-recommends tool-package another"
    assert launched.stderr == f"missing on this machine: tool-package another (on Debian, as root: {command})\n"


def test_root_gets_it_installed(machine):
    launched = need(machine, 0, "tool=tool-package")
    assert launched.returncode == 0, launched.stderr
    calls = (machine / "calls").read_text().splitlines()
    assert calls[-1] == "install --yes --no-install-recommends tool-package"


def test_an_install_that_fails_is_tried_again_with_new_lists_and_then_reported(machine):
    script(machine / "bin" / "apt-get", f'echo "$*" >> {machine}/calls\necho "E: no such package"\nexit 100')
    launched = need(machine, 0, "tool=tool-package")
    assert launched.returncode == 1
    assert "could not install tool-package: E: no such package" in launched.stderr
    assert "update" in (machine / "calls").read_text().splitlines()


def test_the_script_needs_no_bash():
    assert NEED.read_text().startswith("#!/bin/sh\n")
    assert os.access(NEED, os.X_OK)
