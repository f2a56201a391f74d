"""Builds the demo's git repository: a small package with a suspicious install script, the same commit everywhere."""

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

# The commit must not depend on the machine's git settings, or its id would differ.
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
    """Names a bare repository with one commit on `main` that every account of the machine may read."""

    path: Path
    commit: str


def build(path: Path) -> DemoRepository:
    """Create or update the repository at `path`, and return it. Needs git. Concurrent calls wait for each other."""
    with _folder_lock(path.parent), tempfile.TemporaryDirectory(dir=path.parent, prefix="demo-") as folder:
        draft = Path(folder, "demo.git")
        commit = _commit(draft)
        if not _has_commit(path, commit):
            _publish(draft, path)
    return DemoRepository(path, commit)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Serialize builds: directories are not replaced atomically, so two builds would remove each other's result."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _commit(draft: Path) -> str:
    _git(draft, "init", "--quiet", "--bare", "--initial-branch=main", "--template=", str(draft))
    _git(draft, "--work-tree", str(PACKAGE), "add", "--all", "--force", ".")
    tree = _git(draft, "write-tree")
    commit = _git(draft, "commit-tree", tree, "-m", "Release 1.4.2")
    _git(draft, "update-ref", REF, commit)
    return commit


def _has_commit(path: Path, commit: str) -> bool:
    try:
        return path.is_dir() and _git(path, "rev-parse", "--verify", "--quiet", REF) == commit
    except subprocess.CalledProcessError:
        return False


def _publish(draft: Path, path: Path) -> None:
    """Replace the repository by the draft. A checkout between the two renames fails and is tried again."""
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
