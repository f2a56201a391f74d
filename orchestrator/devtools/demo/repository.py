"""The demo's git repository: one small package with a nosy install script, the same commit on every machine."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).with_name("package")
COMMAND = ("sh", "scripts/install.sh")
OWNER, NAME, REF = "runtime-orchestrator", "demo", "refs/heads/main"

# Nothing of the machine's own may reach the commit, or its id would not be the same everywhere.
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "tidy-banner",
    "GIT_AUTHOR_EMAIL": "tidy-banner@example.test",
    "GIT_COMMITTER_NAME": "tidy-banner",
    "GIT_COMMITTER_EMAIL": "tidy-banner@example.test",
    "GIT_AUTHOR_DATE": "2026-01-05T09:00:00+0000",
    "GIT_COMMITTER_DATE": "2026-01-05T09:00:00+0000",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class DemoRepository:
    """A bare repository with one commit on `main`, readable by every account of the machine."""

    path: Path
    commit: str


def build(path: Path) -> DemoRepository:
    """Make the repository at `path`, or bring the one there up to date, and return it. Needs git; who comes while
    another builds it waits."""
    with _alone(path.parent), tempfile.TemporaryDirectory(dir=path.parent, prefix="demo-") as folder:
        draft = Path(folder, "demo.git")
        commit = _commit(draft)
        if not _has(path, commit):
            _publish(draft, path)
    return DemoRepository(path, commit)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Directories cannot replace each other in one step: two that try take away what the other has just put there."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _commit(draft: Path) -> str:
    _git(draft, "init", "--quiet", "--bare", "--initial-branch=main", "--template=", str(draft))
    _git(draft, "--work-tree", str(PACKAGE), "add", "--all", "--force", ".")
    tree = _git(draft, "write-tree")
    commit = _git(draft, "commit-tree", tree, "-m", "Release 1.4.2")
    _git(draft, "update-ref", REF, commit)
    return commit


def _has(path: Path, commit: str) -> bool:
    try:
        return path.is_dir() and _git(path, "rev-parse", "--verify", "--quiet", REF) == commit
    except subprocess.CalledProcessError:
        return False


def _publish(draft: Path, path: Path) -> None:
    """Put the draft in its place. A checkout that comes in between would try again."""
    for item in (draft, *draft.rglob("*")):
        item.chmod(0o755 if item.is_dir() else 0o644)
    if path.exists():
        path.rename(draft.with_name("before.git"))
    draft.rename(path)


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", f"--git-dir={repository}", *arguments]
    environment = {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=PACKAGE, stdin=subprocess.DEVNULL
    ).stdout.strip()
