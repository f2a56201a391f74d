"""The targets of the Makefile handle paths with spaces, name all missing packages at once, and fail in one line."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["a b", "it's", "$HOME", 'double"quote']


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of what `make` uses, without .venv."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "manage.py", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    for name in ("config", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def make(
    checkout: Path, *arguments: str, path: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    ours = ("STATE_DIR", "MAKE", "PIP_", "VIRTUAL_ENV", "REPO", "CMD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment = kept | variables | ({"PATH": path} if path else {})
    command = [shutil.which("make"), "--silent", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("name", NAMES)
def test_clean_removes_a_state_directory_of_any_name_and_nothing_else(checkout, tmp_path, name):
    state = tmp_path / name
    for folder in (state, tmp_path / "a", tmp_path / "b", checkout / "b"):
        folder.mkdir()
        (folder / "kept").touch()
    (state / "secret_key").touch()
    found = make(checkout, "clean", STATE_DIR=str(state))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert not state.exists()
    assert all((folder / "kept").exists() for folder in (tmp_path / "a", tmp_path / "b", checkout / "b"))


def test_clean_refuses_a_folder_that_is_no_state_directory(checkout, tmp_path):
    strange = tmp_path / "photos"
    strange.mkdir()
    (strange / "kept").touch()
    inside = checkout / "secret_key"  # a state directory that contains the checkout
    inside.touch()
    for folder in (strange, checkout, tmp_path, strange / "kept"):
        (tmp_path / "secret_key").touch()
        refused = make(checkout, "clean", STATE_DIR=str(folder))
        assert refused.returncode == 2, folder
        assert refused.stderr.startswith(f"{folder} ")
        assert refused.stderr.splitlines()[0].endswith(": nothing was removed")
    assert (strange / "kept").exists()
    assert inside.exists()


def test_clean_removes_an_empty_state_directory_and_that_of_the_benchmarks(checkout, tmp_path):
    empty, benchmarks = tmp_path / "empty", tmp_path / "benchmarks"
    empty.mkdir()
    (benchmarks / "bench").mkdir(parents=True)
    for folder in (empty, benchmarks):
        assert make(checkout, "clean", STATE_DIR=str(folder)).returncode == 0
        assert not folder.exists()


@pytest.mark.parametrize("name", NAMES)
def test_demo_and_up_have_the_same_state_directory(checkout, name):
    """The tokens that the demo's output leads to are those of `make up`."""
    for target in ("demo", "up"):
        found = make(checkout, "--old-file=setup", target, "MANAGE=printenv STATE_DIR;:", STATE_DIR=f"/tmp/{name}")
        assert (found.returncode, found.stdout, found.stderr) == (0, f"/tmp/{name}\n", ""), target


def test_a_program_of_sbin_is_found_by_an_ordinary_user(tmp_path):
    """Debian's PATH of an ordinary user has no sbin, where mkfs.ext4 is: `make demo` asked for e2fsprogs for ever."""
    for place in ("bin/first", "sbin/second", "bin/id"):
        program = tmp_path / "usr" / place
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\necho 1000\n")
        program.chmod(0o755)
    path = str(tmp_path / "usr" / "bin")
    command = ["/bin/sh", ROOT / "deploy/need", "first=one", "second=two", "third=three"]
    found = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith("missing on this machine: three (")


@pytest.mark.parametrize(("target", "more"), [("demo", ""), ("test", " chromium skopeo")])
def test_all_missing_packages_are_named_at_once_before_anything_is_installed(checkout, tmp_path, target, more):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "bash", "git", "setpriv", "prlimit", "taskset", "cat", "ls", "sed", "grep", "tail", "head"):
        (programs / name).symlink_to(shutil.which(name))
    scripts = {
        "python3": f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"',  # as Debian's without venv
        "id": "echo 1000",
    }
    for name, body in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    found = make(checkout, target, path=str(programs))
    packages = f"bubblewrap strace e2fsprogs{more} python3-venv"
    assert found.returncode == 2
    assert found.stderr.splitlines()[0] == (
        f"missing on this machine: {packages} "
        f"(on Debian, as root: apt-get install --yes --no-install-recommends {packages})"
    )
    assert len([line for line in found.stderr.splitlines() if not line.startswith("make: ***")]) == 1
    assert not (checkout / ".venv").exists()


@pytest.mark.slow
def test_without_a_package_index_there_is_one_line_within_seconds(checkout):
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=checkout, check=True)
    begun = time.monotonic()
    found = make(checkout, "--old-file=system", ".venv/.installed", PIP_INDEX_URL="http://127.0.0.1:9/simple",
                 PIP_CONFIG_FILE="/dev/null")  # fmt: skip
    assert found.returncode == 2
    lines = [line for line in found.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(lines) == 1, found.stderr
    assert lines[0].startswith("no Python package index can be reached")
    assert "PIP_INDEX_URL" in lines[0]
    assert not (checkout / ".venv" / ".installed").exists()
    assert time.monotonic() - begun < 60
