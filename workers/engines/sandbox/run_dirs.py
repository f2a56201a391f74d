"""The resources of one run: its uid, its control group, its directories, its environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from workers.engines.contract import RunSpec
from workers.engines.limits import disk
from workers.engines.limits.cgroups import ControlGroup
from workers.engines.limits.reserve import Reserve
from workers.engines.limits.resource_monitor import Gauge, TreeGauge, VolumeGauge
from workers.engines.limits.volumes import Volumes
from workers.engines.network.egress import PORT, EgressResolver
from workers.engines.sandbox.command import TOOL_PATH
from workers.engines.sandbox.processes import HostProcess

BASIC_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "CI": "true", "TERM": "dumb", "USER": "job",
    "LOGNAME": "job", "SHELL": "/bin/sh",
    # No resolver answers inside: a lookup should fail fast, after its query is in the trace.
    "RES_OPTIONS": "timeout:1 attempts:1",
    "GIT_CONFIG_NOSYSTEM": "1",  # the machine's own is absent or unreadable; git fails on the latter
}  # fmt: skip


@dataclass
class RunEnvironment:
    """The resources of one run, made on entering it as a context, and removed at the end in any case.

    Raises EngineUnavailable on entering.
    """

    spec: RunSpec
    uid: int | None  # None: the worker's own
    group: ControlGroup | None  # None: limits are soft
    resolver: EgressResolver = field(default_factory=EgressResolver)
    volumes: Volumes | None = None  # None: the disk limit is measured, the kernel does not enforce it
    reserve: Reserve = field(default_factory=Reserve)

    @property
    def private(self) -> Path:
        return self.spec.workspace.with_name(self.spec.workspace.name + ".private")

    @property
    def home(self) -> Path:
        return self.private / "home"

    @property
    def temporary(self) -> Path:
        return self.private / "tmp"

    @property
    def trace(self) -> Path:
        return self.private / "trace"

    @property
    def spaces(self) -> list[Path]:
        """Return the directories that the job may write to; its disk limit covers them."""
        return [self.spec.workspace, self.home, self.temporary]

    def gauge(self, members: Callable[[], list[HostProcess]]) -> Gauge:
        """Return the disk gauge of this run, whose processes are `members`."""
        volume = self.volumes.of(self.spec.workspace) if self.volumes else None
        if volume and self.volumes:
            return VolumeGauge(self.spec.limits, volume, self.volumes)
        return TreeGauge(self.spec.limits, self.spaces, members)

    @property
    def directory(self) -> str:
        """Return the working directory below the workspace."""
        return os.path.normpath(self.spec.working_directory)

    def variables(self, home: str, temporary: str) -> dict[str, str]:
        proxy = {}
        if self.spec.egress:
            names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "all_proxy", "ALL_PROXY")
            proxy = dict.fromkeys(names, f"http://127.0.0.1:{PORT}")
            proxy |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
            proxy["NODE_USE_ENV_PROXY"] = "1"
        own = BASIC_ENVIRONMENT | {"HOME": home, "TMPDIR": temporary}
        if self.spec.root:
            own = {"PATH": TOOL_PATH, "HOME": self.spec.root.home}
        return own | proxy | self.spec.environment

    def __enter__(self) -> Self:
        self._check_spec()
        self._check_workspace()
        if self.group:
            self.group.make(self.spec.limits)
        try:
            self._make_directories()
        except OSError:
            self.__exit__()
            raise
        return self

    def _make_directories(self) -> None:
        kept = self._kept()
        disk.remove_tree(self.trace if kept else self.private)
        if not kept:
            self.private.mkdir()
            self.private.chmod(0o711)
        for path in (self.trace,) if kept else (self.home, self.temporary, self.trace):
            path.mkdir()
            path.chmod(0o700)
            if self.uid is not None:
                os.chown(path, self.uid, self.uid)

    def _kept(self) -> bool:
        """Report whether the run before this one has left its home. The job cannot replace that directory."""
        return self.spec.keeps_home and self.home.is_dir() and self.temporary.is_dir()

    def _check_spec(self) -> None:
        spec = self.spec
        words = [*spec.argv, spec.working_directory, *spec.environment, *spec.environment.values()]
        if not spec.argv or any("\0" in word for word in words) or any("=" in name for name in spec.environment):
            raise ValueError("argv must not be empty, no word may contain NUL, and no variable name may contain =")
        is_inside = spec.root is not None and self.directory.startswith("/")
        if not is_inside and (self.directory == ".." or self.directory.startswith(("/", "../"))):
            raise ValueError(f"working_directory {spec.working_directory!r} leaves the workspace")

    def _check_workspace(self) -> None:
        """Raise OSError for anything but a directory, such as a link, and ValueError for one that is not the slot's."""
        handle = os.open(self.spec.workspace, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            owner = os.fstat(handle).st_uid
        finally:
            os.close(handle)
        if self.uid is not None and owner != self.uid:
            raise ValueError(f"the workspace belongs to uid {owner}, and not to its slot's uid {self.uid}")

    def __exit__(self, *_: object) -> None:
        disk.remove_tree(self.trace if self.spec.keeps_home else self.private)
        if self.group:
            self.group.remove()
