"""bwrap for a run in an image, and for the run that unpacks one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.engines.bubblewrap.backend import SHARED_MEMORY_BYTES, WORKSPACE, BubblewrapBackend, bound
from workers.engines.sandbox.launcher import LaunchSpec

IMAGE = "/image"  # beside the machine's own /usr, from which the launcher starts


class ImageBackend(BubblewrapBackend):
    """Runs the job in an image. The launcher changes the root last, and executes nothing of the image before."""

    def launch_spec(self) -> LaunchSpec:
        directory = self.environment.directory
        return replace(
            super().launch_spec(),
            root=IMAGE,
            directory=directory if directory.startswith("/") else f"{WORKSPACE}/{directory}",
        )

    def _places(self, passed: list[int]) -> list[str]:
        root = self.environment.spec.root
        assert root is not None  # noqa: S101  # the engine chooses this class by it
        return [
            *["--uid", str(root.uid), "--gid", str(root.gid)],
            *bound(root.path, IMAGE, passed),
            *["--proc", f"{IMAGE}/proc", "--dev", f"{IMAGE}/dev"],
            *["--size", str(SHARED_MEMORY_BYTES), "--tmpfs", f"{IMAGE}/dev/shm"],  # noqa: S108  # inside
            *bound(self.environment.spec.workspace, f"{IMAGE}{WORKSPACE}", passed),
            *["--remount-ro", f"{IMAGE}/dev"],
        ]


class UnpackBackend(BubblewrapBackend):
    """Runs the unpacker, with further directories of the machine, which it may read."""

    def __init__(self, *arguments: Any, readable: dict[str, Path], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.readable = readable  # by the name inside

    def _places(self, passed: list[int]) -> list[str]:
        shown = [bound(path, name, passed, how="--ro-bind-fd") for name, path in self.readable.items()]
        return [*super()._places(passed), *(word for words in shown for word in words)]
