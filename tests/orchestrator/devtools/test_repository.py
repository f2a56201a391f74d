"""The demo's repository has the same commit everywhere and can be read by every account."""

import os
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.devtools.demo import repository


def test_the_commit_does_not_depend_on_the_machine(tmp_path, monkeypatch):
    first = repository.build(tmp_path / "one.git")
    config = tmp_path / "gitconfig"
    config.write_text("[user]\nname = somebody\n[core]\nautocrlf = true\nfileMode = false\n[commit]\ngpgSign = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        second = repository.build(tmp_path / "two.git")
    finally:
        os.umask(before)
    # Whoever changes the package writes the new id here; on every machine it is the same.
    assert first.commit == second.commit == "bb7dc9eab9475b2211b624229b8bc2940a331377"


def test_every_account_can_read_it(tmp_path):
    path = repository.build(tmp_path / "demo.git").path
    for item in (path, *path.rglob("*")):
        mode = item.stat().st_mode
        assert mode & stat.S_IROTH
        assert not item.is_dir() or mode & stat.S_IXOTH


def test_it_is_not_made_twice(tmp_path):
    path = repository.build(tmp_path / "demo.git").path
    before = path.stat().st_ino
    repository.build(path)
    assert path.stat().st_ino == before


def test_a_broken_one_is_replaced(tmp_path):
    found = repository.build(tmp_path / "demo.git")
    (found.path / "HEAD").unlink()
    assert repository.build(found.path) == found
    assert _head(found.path) == found.commit


def test_two_may_build_it_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(repository.build, [tmp_path / "demo.git"] * 4))
    assert len(set(built)) == 1
    assert _head(tmp_path / "demo.git") == built[0].commit
    assert [item.name for item in tmp_path.iterdir()] == ["demo.git"]


def test_one_builds_it_at_a_time(tmp_path, monkeypatch):
    meeting = threading.Barrier(2)

    def published(_draft, _path):
        with pytest.raises(threading.BrokenBarrierError):
            meeting.wait(0.3)

    monkeypatch.setattr(repository, "_publish", published)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(repository.build, [tmp_path / "demo.git"] * 2))


def _head(path: Path) -> str:
    return subprocess.check_output(["git", f"--git-dir={path}", "rev-parse", "main"], text=True).strip()
