"""The work directory of a worker: one fresh directory per job, owned by the slot's uid and removed afterwards."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from pathlib import Path

from workers.agent.checkout import CheckoutFailed
from workers.agent.errors import WorkerStartError
from workers.agent.slots import locked

logger = logging.getLogger(__name__)

WIPE_SECONDS = 300
# In the volume of a slot, which the engine replaces if it is not empty: the slot may have its next lease already, which
# is to be acknowledged within 30 seconds.
WIPE_SECONDS_IN_VOLUME = 5


class WorkFolder:
    """The work directory, locked by one process at a time: `jobs/` for checkouts, `spool/` for results."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.jobs = self.path / "jobs"
        self.spool = self.path / "spool"
        try:
            for folder, mode in ((self.path, 0o711), (self.jobs, 0o711), (self.spool, 0o700)):
                folder.mkdir(mode=mode, parents=True, exist_ok=True)
                folder.chmod(mode)  # the umask may have taken something away
            self._lock = locked(self.path / "lock")
        except OSError as error:
            raise WorkerStartError(
                f"cannot use {self.path} ({error.strerror}): name another one with --work-dir"
            ) from None
        if self._lock is None:
            raise WorkerStartError(f"another worker uses {self.path}: name another one with --work-dir")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def require_traversable(self) -> None:
        """Raise WorkerStartError unless the slots' uids can reach the checkouts."""
        for step in (self.jobs, *self.jobs.parents):
            if not step.stat().st_mode & stat.S_IXOTH:
                raise WorkerStartError(f"the uids of the slots cannot enter {step}: set --work-dir, or chmod o+x it")

    def make_workspace(self, job_id: str, owner: int | None, parent: Path | None = None) -> Path:
        """Return a new, empty directory for a job.

        Args:
            job_id: Its name.
            owner: The uid and gid that it belongs to; None: ours. Its mode is 0700.
            parent: The directory of the job's slot, if that is not `jobs` itself.
        """
        workspace = (parent or self.jobs) / job_id
        self.remove_workspace(workspace)
        workspace.mkdir(mode=0o700)
        if owner is not None:
            os.chown(workspace, owner, owner)
        return workspace

    @staticmethod
    def empty(folder: Path) -> None:
        """Remove what is in a folder. No process of the job runs.

        Raises:
            CheckoutFailed: Something is left.
        """
        _succeeds(["chmod", "u+rwx", "--", str(folder)])  # see `_removed`
        try:
            for path in folder.iterdir():
                _removed(path)
            is_empty = not any(folder.iterdir())
        except OSError:
            is_empty = False
        if not is_empty:
            raise CheckoutFailed("What the steps before have left in the workspace cannot be removed.")

    def remove_workspace(self, workspace: Path) -> None:
        """Remove the workspace and the engine's directory beside it. Errors are logged, not raised."""
        for path in (workspace, workspace.with_name(workspace.name + ".private")):
            if not os.path.lexists(path):
                continue
            if workspace.parent == self.jobs:
                _remove(path)
            elif not _succeeds(_removal(path), WIPE_SECONDS_IN_VOLUME):
                logger.info("workspace not removed: the engine replaces its volume path=%s", path)

    def remove_all(self) -> None:
        """Remove every workspace that an earlier process left."""
        for workspace in sorted(self.jobs.iterdir()):
            logger.info("removing workspace of an earlier process name=%s", workspace.name)
            _remove(workspace)


def _remove(path: Path) -> None:
    if not _removed(path):
        logger.error("workspace not removed: its disk space stays in use path=%s", path)


def _removed(path: Path) -> bool:
    if _succeeds(_removal(path)):
        return True
    if not path.is_symlink():  # a job of our own account may have closed its directories to itself
        _succeeds(["chmod", "-R", "u+rwX", "--", str(path)])
    return _succeeds(_removal(path))


def _removal(path: Path) -> list[str]:
    # rm, not shutil: a job may nest directories deeper than Python's stack, and rm follows no link either.
    return ["rm", "-rf", "--one-file-system", "--", str(path)]


def _succeeds(command: list[str], seconds: float = WIPE_SECONDS) -> bool:
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
