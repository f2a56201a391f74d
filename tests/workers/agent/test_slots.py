from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workers.agent.errors import WorkerStartError
from workers.agent.slots import WorkerSlots, lock_folder


def test_two_workers_of_a_machine_never_have_the_same_slot(tmp_path: Path) -> None:
    first, second = WorkerSlots(2, tmp_path / "l"), WorkerSlots(3, tmp_path / "l")
    assert first.numbers == (0, 1)
    assert second.numbers == (2, 3, 4)
    first.close()
    third = WorkerSlots(1, tmp_path / "l")
    assert third.numbers == (0,)
    second.close()
    third.close()


def test_the_kernel_frees_the_slots_of_a_killed_worker(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from workers.agent.slots import WorkerSlots\nslots = WorkerSlots(1, Path(sys.argv[1])); print(slots.numbers, flush=True); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "l")], stdout=subprocess.PIPE)
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"(0,)\n"
        other = WorkerSlots(1, tmp_path / "l")
        assert other.numbers == (1,)
        other.close()
        worker.kill()
    again = WorkerSlots(1, tmp_path / "l")
    assert again.numbers == (0,)
    again.close()


def test_a_slot_is_taken_once_and_waited_for(tmp_path: Path) -> None:
    slots = WorkerSlots(1, tmp_path / "l")
    assert slots.take(within=0) == 0
    assert slots.take(within=0.05) is None
    taken: list[int | None] = []
    waiter = threading.Thread(target=lambda: taken.append(slots.take(within=10)))
    waiter.start()
    slots.release(0)
    waiter.join()
    assert taken == [0]
    slots.close()


def test_the_locks_are_ours_alone(tmp_path: Path) -> None:
    open_to_all = tmp_path / "l"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(WorkerStartError, match="only this account can write"):
        WorkerSlots(1, open_to_all)


def test_a_place_for_the_locks_that_cannot_be_made_is_shown_in_one_line() -> None:
    with pytest.raises(WorkerStartError, match="cannot lock the slots"):
        WorkerSlots(1, Path("/proc/nowhere/slots"))


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "l"
    folder.mkdir(mode=0o700)
    (folder / "slot-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        WorkerSlots(1, folder)
    assert not (tmp_path / "elsewhere").exists()


def test_all_workers_of_an_account_look_at_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = lock_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert lock_folder() == before
    assert str(os.geteuid()) in before.name or os.geteuid() == 0
