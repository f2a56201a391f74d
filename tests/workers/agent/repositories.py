"""Real bare repositories with any content, also content that no honest tool would store."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.com",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


def git(*arguments: str, at: Path, send: bytes = b"") -> str:
    done = subprocess.run(["git", *arguments], cwd=at, env=ENVIRONMENT, input=send, capture_output=True, check=True)
    return done.stdout.decode().strip()


class Repository:
    """A bare repository at `path`. `commit` makes a commit from names and bytes alone, without a working tree."""

    def __init__(self, path: Path, object_format: str = "sha1") -> None:
        self.path = path
        path.mkdir(parents=True)
        git("init", "-q", "--bare", "--initial-branch=main", f"--object-format={object_format}", at=path)

    def commit(
        self, files: dict[str, bytes], *, links: dict[str, str] | None = None, parent: str = "", **modules: str
    ) -> str:
        """Return the commit's id. `modules`: name -> id of a submodule's commit."""
        entries = [
            ("100755" if name.endswith(".sh") else "100644", self.blob(data), name) for name, data in files.items()
        ]
        entries += [("120000", self.blob(target.encode()), name) for name, target in (links or {}).items()]
        entries += [("160000", commit, name) for name, commit in modules.items()]
        index = self.path / "made-index"
        index.unlink(missing_ok=True)
        lines = "".join(f"{mode} {blob}\t{name}\n" for mode, blob, name in entries)
        environment = ENVIRONMENT | {"GIT_INDEX_FILE": str(index)}
        subprocess.run(
            ["git", "update-index", "--index-info"], cwd=self.path, env=environment, input=lines.encode(), check=True
        )
        tree = subprocess.run(["git", "write-tree"], cwd=self.path, env=environment, capture_output=True, check=True)
        return self.commit_tree(tree.stdout.decode().strip(), parent)

    def commit_tree(self, tree: str, parent: str = "") -> str:
        made = git("commit-tree", tree, "-m", "made", *(["-p", parent] if parent else []), at=self.path)
        self.point_main_at(made)
        return made

    def point_main_at(self, commit: str) -> None:
        git("update-ref", "refs/heads/main", commit, at=self.path)

    def write_object(self, kind: str, data: bytes) -> str:
        """Store an object that git's own commands refuse to write, and return its id."""
        return git("hash-object", "-t", kind, "-w", "--stdin", "--literally", at=self.path, send=data)

    def blob(self, data: bytes) -> str:
        return git("hash-object", "-w", "--stdin", at=self.path, send=data)
