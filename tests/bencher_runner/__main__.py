"""`make runner BENCHER_RUNNER=PATH`: plays each story with the real runner, and prints one JSON object as the last line.

The exit code is 0 if every story is true, 1 if one is not, and 2 if something is missing; that of `make` is 2 in both
cases. `RECORD=COMMIT` keeps the frames of the stories as the recordings that a test replays; COMMIT is that of the
runner's source.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

from config.paths import BASE_DIR
from tests.bencher_runner import image as images
from tests.bencher_runner.installation import PROJECT, HostTraces, Installation
from tests.bencher_runner.stories import NAMES, SETTINGS, STORIES, LongJob, Scene

VARIABLE = "BENCHER_RUNNER"
RECORDED = BASE_DIR / "tests/orchestrator/protocols/bencher/recorded"
TAG = "stories"
MAX_SECONDS = 1500
console = Console(highlight=False, soft_wrap=True, markup=False)


class TooLong(Exception):
    """All stories together have taken more than MAX_SECONDS."""


def find_binary() -> tuple[Path | None, str]:
    """Return the runner's program and its version, or None and what is missing."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None, f"{VARIABLE} is not set: name the program of Bencher's runner, {VARIABLE}=/path/to/runner"
    path = Path(given).resolve()
    if not (path.is_file() and os.access(path, os.X_OK)):
        return None, f"{VARIABLE}={given} is no executable file: build Bencher's runner and name its program"
    if not images.supports_machine():
        return None, f"the program of the image exists for {', '.join(images.ARCHITECTURES)} only"
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{VARIABLE}={given} does not display its version: {error}"
    name, _, version = shown.strip().partition(" ")
    if name != "runner" or not version:
        return None, f"{VARIABLE}={given} is not Bencher's runner: its version is {shown.strip()!r}"
    return path, version


class Play:
    """All stories. `results` has for each whether it is true; an absent one was not played."""

    def __init__(self, binary: Path, folder: Path) -> None:
        """Prepare.

        Args:
            binary: The runner's program.
            folder: A folder for logs, recordings and temporary files.
        """
        self.binary, self.folder = binary, folder
        self.results = dict.fromkeys(NAMES, False)
        self.long_job_seconds, self.long_job_reconnects = 0.0, 0

    def run(self) -> None:
        """Play the stories one after the other, beside the long job in an installation of its own."""
        logs = self.folder / "logs"
        logs.mkdir()
        with Installation("long", logs) as beside:
            push(beside)
            with self._scene(LongJob.NAME, beside) as scene:
                long_job: LongJob | None = None
                with self._judged(LongJob.NAME, scene, is_begin=True):
                    long_job = LongJob(scene)
                self._play_stories(logs)
                if long_job is not None:
                    with self._judged(LongJob.NAME, scene):
                        long_job.finish()
                    self.long_job_seconds, self.long_job_reconnects = long_job.seconds, long_job.reconnects

    def _play_stories(self, logs: Path) -> None:
        with Installation("stories", logs, SETTINGS) as installation:
            push(installation)
            for name, story in STORIES.items():
                with self._scene(name, installation) as scene, self._judged(name, scene):
                    story(scene)

    def _scene(self, name: str, installation: Installation) -> Scene:
        folder = self.folder / "runners"
        return Scene(name, installation, binary=self.binary, image=reference(installation), folder=folder)

    @contextlib.contextmanager
    def _judged(self, name: str, scene: Scene, *, is_begin: bool = False) -> Iterator[None]:
        try:
            yield
        except TooLong:
            raise
        except Exception as error:  # noqa: BLE001 the other stories are played in any case
            console.print(f"WRONG {name}: {error or type(error).__name__}")
            console.print("".join(traceback.format_tb(error.__traceback__)[-2:]).rstrip())
            self._write(name, scene, suffix=".wrong")
        else:
            if is_begin:
                return
            self.results[name] = True
            console.print(f"ok    {name}, {time.monotonic() - scene.began_at:.1f} s")
            self._write(name, scene)

    def _write(self, name: str, scene: Scene, suffix: str = "") -> None:
        write_recording(self.folder / "recorded" / f"{name}.jsonl{suffix}", scene)


def push(installation: Installation) -> None:
    """Push the image to the registry of an installation."""
    images.push_image(
        images.build_image(),
        registry=installation.url,
        repository=PROJECT,
        tag=TAG,
        user="member",
        key=installation.seed["user_key"],
    )


def reference(installation: Installation) -> str:
    return f"127.0.0.1:{installation.port}/{PROJECT}:{TAG}"


def write_recording(path: Path, scene: Scene) -> None:
    """Write a recording without its header. The ids of jobs are replaced by their numbers: `job-1`."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(entry, separators=(",", ":")) for entry in scene.recording.entries]
    text = "".join(f"{line}\n" for line in lines)
    for number, job in enumerate(scene.jobs, 1):
        text = text.replace(job, f"job-{number}")
    path.write_text(text)


def keep_recordings(source: Path, *, version: str, commit: str) -> None:
    """Replace the recordings that a test replays.

    Args:
        source: The folder with those of this run.
        version: The version of the runner.
        commit: The commit of its source.
    """
    RECORDED.mkdir(exist_ok=True)
    for name in NAMES:
        header = json.dumps({"story": name, "runner": version, "commit": commit}, separators=(",", ":"))
        (RECORDED / f"{name}.jsonl").write_text(f"{header}\n{(source / f'{name}.jsonl').read_text()}")


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLong


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Play everything, and return the exit code."""
    binary, found = find_binary()
    if binary is None:
        console.print(found)
        return 2
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGTERM, _interrupted)
    signal.alarm(MAX_SECONDS)
    folder = Path(tempfile.mkdtemp(prefix="rto-bencher-"))
    play = Play(binary, folder)
    console.print(f"runner {found}, {len(NAMES)} stories, about nine minutes; logs in {folder}")
    try:
        with HostTraces():
            play.run()
    except TooLong:
        console.print(f"WRONG: the stories have taken more than {MAX_SECONDS} s")
    except Exception as error:  # noqa: BLE001 the last line is written in any case
        console.print(f"WRONG: {error or type(error).__name__}")
        console.print("".join(traceback.format_tb(error.__traceback__)[-2:]).rstrip())
    finally:
        signal.alarm(0)
    is_true = all(play.results.values())
    if is_true:
        if commit := os.environ.get("RECORD"):
            keep_recordings(folder / "recorded", version=found, commit=commit)
        shutil.rmtree(folder)
    else:
        console.print(f"logs and recordings are kept: {folder}")
    line = {
        "runner": found,
        "stories": play.results,
        "long_job_seconds": play.long_job_seconds,
        "long_job_reconnects": play.long_job_reconnects,
    }
    print(json.dumps(line), flush=True)  # noqa: T201 for programs
    return 0 if is_true else 1


if __name__ == "__main__":
    sys.exit(main())
