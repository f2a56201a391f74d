"""Reads commits of mirrors: files, folders, refs and changed paths. Nothing here uses the network."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.repositories.errors import (
    CommitNotFound,
    FileTooLarge,
    GitFailed,
    GitLimitExceeded,
    PathNotFound,
    RefNotFound,
)
from orchestrator.repositories.git import GitLimits, run_git
from orchestrator.repositories.mirrors import require_mirror
from runtime_jobs.models import Repository
from runtime_jobs.validators import COMMIT, validate_ref

MAX_CHANGED_PATHS: Final = 10_000
MAX_FOLDER_FILES: Final = 1_000
MAX_PATH_BYTES: Final = 1_024
BRANCHES, TAGS = "refs/heads/", "refs/tags/"
_REGULAR: Final = frozenset({"100644", "100755"})
_ENTRY: Final = re.compile(rb"(?P<mode>\d{6}) \w+ (?P<id>[0-9a-f]+) +(?P<size>\d+|-)\t(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True)
class TreeEntry:
    """An entry of a folder at a commit."""

    mode: str
    object_id: str
    size: int
    path: str


def read_file_at(repository: Repository, commit: str, path: str, limit: int) -> bytes:
    """Return the content of a file at a commit.

    Args:
        repository: The repository.
        commit: A full commit id.
        path: The path of the file in the repository, without a slash at the beginning.
        limit: The largest size in bytes.

    Raises:
        MirrorMissing: The repository has no mirror yet.
        CommitNotFound: The mirror does not have the commit.
        PathNotFound: There is no regular file at the path. A symbolic link is none.
        FileTooLarge: The file is larger than `limit`.
    """
    mirror = require_mirror(repository)
    entry = next((found for found in _entries(mirror, commit, _checked(path)) if found.path == path), None)
    if entry is None or entry.mode not in _REGULAR:
        raise PathNotFound(f"{path}: The commit {commit} has no regular file with this path.")
    if entry.size > limit:
        raise FileTooLarge(f"{path}: The file has {entry.size:,} bytes; at most {limit:,} are read.")
    return run_git(mirror, "cat-file", "blob", entry.object_id, limits=GitLimits(output_bytes=limit))


def list_files_at(repository: Repository, commit: str, folder: str) -> list[str]:
    """Return the paths of the regular files directly in a folder, in order; none if there is no such folder.

    Args:
        repository: The repository.
        commit: A full commit id.
        folder: The path of the folder, without a slash at either end.

    Raises:
        MirrorMissing: The repository has no mirror yet.
        CommitNotFound: The mirror does not have the commit.
        FileTooLarge: The folder has more than `MAX_FOLDER_FILES` entries.
    """
    entries = _entries(require_mirror(repository), commit, f"{_checked(folder)}/")
    if len(entries) > MAX_FOLDER_FILES:
        raise FileTooLarge(f"{folder}: The folder has more than {MAX_FOLDER_FILES:,} entries.")
    return sorted(entry.path for entry in entries if entry.mode in _REGULAR)


def resolve_ref(repository: Repository, ref: str) -> str:
    """Return the id of the commit that a ref names in the mirror.

    Args:
        repository: The repository.
        ref: `refs/heads/…`, `refs/tags/…`, the name of a branch, the name of a tag, or a full commit id. A branch
            is preferred to a tag with its name.

    Raises:
        MirrorMissing: The repository has no mirror yet.
        RefNotFound: The mirror has no such branch, tag or commit.
    """
    mirror = require_mirror(repository)
    if COMMIT.fullmatch(ref):
        candidates = [ref]
    elif validate_ref(ref) is not None:
        candidates = []
    elif ref.startswith((BRANCHES, TAGS)):
        candidates = [ref]
    else:
        candidates = [BRANCHES + ref, TAGS + ref]
    for candidate in candidates:
        if (commit := _commit_of(mirror, candidate)) is not None:
            return commit
    raise RefNotFound(f"{ref}: The repository {repository.full_name} has no branch, tag or commit with this name.")


def default_ref(repository: Repository) -> str:
    """Return the full name of the default branch of the origin, such as `refs/heads/main`.

    Raises:
        MirrorMissing: The repository has no mirror yet.
    """
    return run_git(require_mirror(repository), "symbolic-ref", "HEAD").decode().strip()


def changed_paths(
    repository: Repository, before: str, after: str, *, from_merge_base: bool = False
) -> tuple[str, ...] | None:
    """Return the paths that differ between two commits.

    Args:
        repository: The repository.
        before: A full commit id. Zeros, as in the event of a new branch: the first parent of `after`, or an empty tree.
        after: A full commit id.
        from_merge_base: Compare `after` with the newest common ancestor, as a pull request does.

    Returns:
        The paths in order. None if they cannot be known: the mirror does not have `before`, the commits have no
        common ancestor, more than `MAX_CHANGED_PATHS` differ, or the comparison exceeds a limit of git. A filter of
        paths must accept the event then.

    Raises:
        MirrorMissing: The repository has no mirror yet.
        CommitNotFound: The mirror does not have `after`.
    """
    mirror = require_mirror(repository)
    _require_commit(mirror, after)
    if not before.strip("0"):
        before = _commit_of(mirror, f"{after}^1") or ""
        arguments = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after]
        if not before:
            arguments = ["ls-tree", "-r", "-z", "--name-only", "--full-tree", after]
    else:
        if COMMIT.fullmatch(before) is None or _commit_of(mirror, before) is None:
            return None
        if from_merge_base:
            try:
                before = run_git(mirror, "merge-base", before, after).decode().strip()
            except (GitFailed, GitLimitExceeded):
                return None
        arguments = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after]
    limits = GitLimits(output_bytes=64 << 20)
    try:
        found = run_git(mirror, *arguments, limits=limits).split(b"\0")[:-1]
    except GitLimitExceeded:  # a repetition would exceed it again
        return None
    if len(found) > MAX_CHANGED_PATHS:
        return None
    return tuple(sorted(path.decode(errors="surrogateescape") for path in found))


def has_commit(repository: Repository, commit: str) -> bool:
    """Return whether the mirror has a commit.

    Raises:
        MirrorMissing: The repository has no mirror yet.
    """
    return COMMIT.fullmatch(commit) is not None and _commit_of(require_mirror(repository), commit) is not None


def is_in_history(repository: Repository, commit: str, descendant: str) -> bool:
    """Return whether a commit is `descendant` or one of its ancestors.

    A mirror also has commits of forks, which were fetched by their id and are in the history of no branch.

    Args:
        repository: The repository.
        commit: The id of a commit.
        descendant: The id of a commit of the mirror.

    Raises:
        MirrorMissing: The repository has no mirror yet.
        GitLimitExceeded: The search took too long.
    """
    if not has_commit(repository, commit):
        return False
    try:
        run_git(require_mirror(repository), "merge-base", "--is-ancestor", commit, descendant)
    except GitFailed:
        return False
    return True


def _entries(mirror: Path, commit: str, path: str) -> list[TreeEntry]:
    """Return the entry of a file, or with a slash at the end of the path the entries of a folder."""
    _require_commit(mirror, commit)
    limits = GitLimits(output_bytes=MAX_FOLDER_FILES * (2 * MAX_PATH_BYTES))
    listed = run_git(mirror, "ls-tree", "-z", "-l", "--full-tree", commit, "--", path, limits=limits)
    found = [_ENTRY.fullmatch(line) for line in listed.split(b"\0")[:-1]]
    return [
        TreeEntry(
            entry["mode"].decode(),
            entry["id"].decode(),
            int(entry["size"]) if entry["size"] != b"-" else 0,
            entry["path"].decode(errors="surrogateescape"),
        )
        for entry in found
        if entry
    ]


def _require_commit(mirror: Path, commit: str) -> None:
    if COMMIT.fullmatch(commit) is None or _commit_of(mirror, commit) is None:
        raise CommitNotFound(f"The repository does not have the commit {commit[:64]}.")


def _commit_of(mirror: Path, name: str) -> str | None:
    """Return the id of a commit, or None. The name is an id or a full ref, perhaps with `^1`."""
    try:
        found = run_git(mirror, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitFailed:
        return None
    return found.decode().strip() or None


def _checked(path: str) -> str:
    """Return a path that git resolves from the root of the commit.

    Raises:
        PathNotFound: No repository has such a path.
    """
    steps = path.split("/")
    size = len(path.encode(errors="surrogateescape"))
    if "\0" in path or size > MAX_PATH_BYTES or {"", ".", ".."} & {*steps}:
        raise PathNotFound(f"{path[:200]!r}: The path must be relative, without empty parts, `.` and `..`.")
    return path
