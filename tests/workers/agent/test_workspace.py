from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from workers.agent.checkout import CheckoutFailed
from workers.agent.errors import WorkerStartError
from workers.agent.workspace import WorkFolder


@pytest.fixture
def folder(open_dir: Path) -> WorkFolder:
    return WorkFolder(open_dir / "work")


def test_a_workspace_is_empty_private_and_the_slot_s(folder: WorkFolder, owner: int | None) -> None:
    place = folder.make_workspace("rtj_1", owner)
    assert list(place.iterdir()) == []
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place.stat().st_uid == (os.geteuid() if owner is None else owner)


def test_a_workspace_of_an_earlier_attempt_is_not_used_again(folder: WorkFolder, owner: int | None) -> None:
    (folder.make_workspace("rtj_1", owner) / "left").touch()
    assert list(folder.make_workspace("rtj_1", owner).iterdir()) == []


def test_others_may_walk_through_but_look_at_nothing(folder: WorkFolder) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o711
    assert stat.S_IMODE(folder.jobs.stat().st_mode) == 0o711
    assert stat.S_IMODE(folder.spool.stat().st_mode) == 0o700
    folder.require_traversable()


def test_a_folder_that_the_slots_cannot_reach_is_refused_by_name(open_dir: Path) -> None:
    (open_dir / "closed").mkdir(mode=0o700)
    folder = WorkFolder(open_dir / "closed" / "work")
    with pytest.raises(WorkerStartError, match="closed"):
        folder.require_traversable()


def test_two_workers_do_not_share_a_folder(folder: WorkFolder) -> None:
    with pytest.raises(WorkerStartError, match="another worker uses"):
        WorkFolder(folder.path)
    folder.close()
    WorkFolder(folder.path).close()


def test_a_place_that_cannot_be_a_folder_is_refused_in_one_line(open_dir: Path) -> None:
    (open_dir / "file").touch()
    with pytest.raises(WorkerStartError, match="--work-dir"):
        WorkFolder(open_dir / "file" / "work")


def test_wiping_follows_no_link_and_takes_the_engine_s_directory_along(folder: WorkFolder, open_dir: Path) -> None:
    (open_dir / "precious").mkdir()
    (open_dir / "precious" / "file").touch()
    place = folder.make_workspace("rtj_1", None)
    (place / "link").symlink_to(open_dir / "precious")
    private = place.with_name("rtj_1.private")
    private.mkdir()
    (private / "up").symlink_to("../..")
    folder.remove_workspace(place)
    assert list(folder.jobs.iterdir()) == []
    assert (open_dir / "precious" / "file").exists()


def test_a_workspace_replaced_by_a_link_is_removed_as_a_link(folder: WorkFolder, open_dir: Path) -> None:
    (open_dir / "precious").mkdir()
    (folder.jobs / "rtj_1").symlink_to(open_dir / "precious")
    folder.remove_workspace(folder.jobs / "rtj_1")
    assert (open_dir / "precious").exists()
    assert not os.path.lexists(folder.jobs / "rtj_1")


def test_directories_nested_deeper_than_a_stack_are_removed(folder: WorkFolder) -> None:
    at = os.open(folder.make_workspace("rtj_1", None), os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    folder.remove_workspace(folder.jobs / "rtj_1")
    assert list(folder.jobs.iterdir()) == []


def test_directories_that_a_job_has_closed_to_itself_are_removed(folder: WorkFolder) -> None:
    place = folder.make_workspace("rtj_1", None)
    (place / "closed" / "in").mkdir(parents=True)
    (place / "closed" / "in" / "file").touch()
    (place / "closed" / "in").chmod(0)
    (place / "closed").chmod(0o500)
    folder.remove_workspace(place)
    assert list(folder.jobs.iterdir()) == []


def test_a_folder_is_emptied_or_refused(folder: WorkFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """git of the worker begins in it: a repository that is left there may name programs."""
    place = folder.make_workspace("rtj_1", None)
    (place / ".git" / "in").mkdir(parents=True)
    (place / ".git" / "in").chmod(0)
    (place / ".git").chmod(0o500)
    place.chmod(0)
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        # Root removes what is closed; any other account does not.
        is_open = place.stat().st_mode & (place / ".git").stat().st_mode & stat.S_IWUSR
        if command[0] == "rm" and not is_open:
            return subprocess.CompletedProcess(command, 1)
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    folder.empty(place)
    assert list(place.iterdir()) == []
    (place / ".git").mkdir()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(CheckoutFailed, match="cannot be removed"):
        folder.empty(place)


def test_names_that_look_like_options_are_removed(folder: WorkFolder) -> None:
    (folder.make_workspace("rtj_1", None) / "-rf").touch()
    folder.remove_workspace(folder.jobs / "rtj_1")
    assert list(folder.jobs.iterdir()) == []


def test_the_volume_of_a_slot_is_not_wiped_for_longer_than_a_lease_waits(
    folder: WorkFolder, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may leave millions of names, and the slot has its next lease already."""
    limits = []

    def run(command: list[str], **options: Any) -> None:
        limits.append((command[0], options["timeout"]))
        raise subprocess.TimeoutExpired(command, options["timeout"])

    volume = open_dir / "work" / "jobs" / "slot-0"
    volume.mkdir()
    in_volume, elsewhere = folder.make_workspace("rtj_1", None, volume), folder.make_workspace("rtj_2", None)
    monkeypatch.setattr(subprocess, "run", run)
    folder.remove_workspace(in_volume)
    assert limits == [("rm", 5)]
    limits.clear()
    folder.remove_workspace(elsewhere)
    assert limits == [("rm", 300), ("chmod", 300), ("rm", 300)]


def test_what_an_earlier_life_left_is_removed(folder: WorkFolder) -> None:
    for name in ("rtj_1", "rtj_1.private", "rtj_2"):
        (folder.jobs / name / "x").mkdir(parents=True)
    (folder.jobs / "rtj_2.gitconfig").touch()
    folder.remove_all()
    assert list(folder.jobs.iterdir()) == []
