"""Whatever other accounts of the installation must reach can be reached, and no folder above changes its mode."""

import os
import pwd
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from config import paths
from config.postgres import embedded


def modes(path: Path) -> dict[Path, int]:
    return {step: step.stat().st_mode for step in (path, *path.parents)}


@pytest.fixture
def unreachable(tmp_path: Path) -> Path:
    """Make a folder with the mode of /root: no other user may pass it."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.root
def test_an_unreachable_installation_gets_a_home_that_others_can_walk_to(unreachable):
    before = modes(unreachable)
    state = unreachable / "state"
    home = paths.prepare_home(state)
    try:
        assert home == paths.home(state) == paths.prepare_home(state)
        assert paths.is_world_traversable(home)
        assert modes(unreachable) == before
        assert (home / "belongs-to").read_text() == f"{state}\n"
    finally:
        paths.remove_home(state)
    assert not home.exists()
    assert not state.exists()


@pytest.mark.root
def test_postgresql_runs_for_an_unreachable_installation(unreachable):
    state = unreachable / "state"
    (paths.prepare_home(state) / "throwaway").touch()
    command = "import sys, pathlib, config.postgres.embedded as e; print(e.ensure(pathlib.Path(sys.argv[1]))['host'])"
    output = subprocess.check_output([sys.executable, "-c", command, state], text=True, cwd=paths.BASE_DIR)
    assert output.strip() == str(paths.home(state) / "postgres" / "socket")
    assert not paths.home(state).exists()


@pytest.mark.root
def test_a_fresh_clone_at_the_same_place_does_not_find_the_old_data(unreachable):
    state = unreachable / "state"
    first = paths.prepare_home(state)
    state.joinpath("home").unlink()
    state.rmdir()
    second = paths.prepare_home(state)
    assert first != second
    paths.remove_home(state)
    first.joinpath("belongs-to").unlink()
    first.rmdir()


def test_an_ordinary_path_is_its_own_home(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert paths.prepare_home(tmp_path / "state") == tmp_path / "state"
    assert paths.work_dir(tmp_path / "state") == tmp_path / "state" / "work"


def test_a_deep_path_gets_a_short_folder_for_the_socket(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    folder = paths.socket_folder(deep)
    assert len(os.fsencode(folder / paths.SOCKET_NAME)) <= paths.MAX_SOCKET_PATH
    assert folder == paths.socket_folder(deep)
    assert embedded.django_database(deep)["HOST"] == str(folder)


def test_a_folder_that_somebody_else_put_there_is_refused(tmp_path):
    account = paths.postgres_account(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = tmp_path / "planted"
    planted.symlink_to(elsewhere)
    with pytest.raises(paths.PathError):
        paths.prepare_private(planted, account)


def test_a_state_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(paths.PathError, match="STATE_DIR"):
        paths.prepare_home(tmp_path / "file" / "state")


def test_a_relative_state_directory_counts_from_the_project(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATE_DIR", "some/where")
    assert paths.state_dir() == paths.BASE_DIR / "some" / "where"


def test_a_state_directory_that_is_not_there_yet_has_an_address(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    assert embedded.django_database(deep)["HOST"]
    assert not deep.exists()


def test_an_account_without_a_name_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(paths.PathError, match="the uid 4000000"):
        paths.postgres_account(tmp_path)


@pytest.mark.root
def test_first_starts_at_the_same_moment_agree_on_the_account(tmp_path):
    """Of two `useradd` at once the later one took the other's account away again, and a cluster had no owner."""
    name = f"rto-test-{os.getpid()}"
    ask = "import sys; from config import paths; paths.SYSTEM_ACCOUNT = sys.argv[1]; sys.stdin.readline()\n"
    ask += "print(paths._system_account().pw_uid)"
    command = [sys.executable, "-c", ask, name]
    starts = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=paths.BASE_DIR) for _ in range(4)]
    try:
        for start in starts:
            print(file=start.stdin, flush=True)
        output = {start.communicate(timeout=30)[0] for start in starts}
        assert output == {f"{pwd.getpwnam(name).pw_uid}\n"}
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
