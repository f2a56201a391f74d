"""Keeps a bare mirror of each repository on the disk: `MIRROR_DIR/<id>/mirror.git`.

A mirror follows the branches and tags of its origin. Nothing is ever removed from its objects: a job may check out a
commit that no branch has any more. Readers see the first copy when it is complete. One process at a time updates a
mirror. Its lock is released when it and the last git that it has started have ended, whatever ends them. The next
update removes what git left behind.
"""

import base64
import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from orchestrator.core import sealing
from orchestrator.repositories.errors import CommitNotFound, GitFailed, GitLimitExceeded, InvalidOrigin, MirrorMissing
from orchestrator.repositories.git import GitLimits, run_git
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.models import Repository
from runtime_jobs.validators import COMMIT, PATH, validate_repo_url

log = logging.getLogger(__name__)

CREDENTIAL: Final = "repository-credential"  # purpose of the sealed value
COMMIT_REFS: Final = "refs/orchestrator/commits/"  # of commits that were fetched by their id
REFSPECS: Final = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
MAX_PACKS: Final = 50  # above it the packs are joined
LOCK_SECONDS: Final = 60.0  # until an update by another process must have ended
LOCK_PAUSE_SECONDS: Final = 0.2
MEASURE_SECONDS: Final = 1.0  # between two measurements of a mirror that is being updated


def mirror_path(repository: Repository) -> Path:
    """Return the path of the mirror, which may not exist."""
    return _folder(repository.pk) / "mirror.git"


def require_mirror(repository: Repository) -> Path:
    """Return the path of the mirror.

    Raises:
        MirrorMissing: The first copy has not succeeded yet.
    """
    path = mirror_path(repository)
    if not path.is_dir():
        raise MirrorMissing(f"The repository {repository.full_name} has not been copied from its origin yet.")
    return path


def validate_origin(origin: str) -> str | None:
    """Return why a repository may not have this origin, or None.

    Args:
        origin: An https URL, or the absolute path of a bare repository.
    """
    if origin.startswith("/"):
        return _wrong_folder(origin)
    parts = urlsplit(origin)
    path = PATH.fullmatch(parts.path)
    owner, name = path.groups() if path else ("", "")
    return validate_repo_url(origin, owner=owner, repo=name, hosts=settings.REPOSITORY_HOSTS)


def seal_credential(full_name: str, credential: str) -> bytes:
    """Return the sealed form of the credential of a repository.

    Args:
        full_name: The name of the repository, `owner/name`.
        credential: `user:password`, or a token alone.
    """
    return sealing.seal(CREDENTIAL, credential.encode(), context=full_name.lower())


def update_mirror(repository: Repository, *, commit: str | None = None) -> None:
    """Make the branches and tags of the mirror equal to those of the origin.

    The network is used. Call it from a thread that may take minutes.

    Args:
        repository: The repository.
        commit: A commit that the mirror must have afterwards, also if no branch has it.

    Raises:
        InvalidOrigin: The settings do not permit the origin.
        GitFailed: The origin cannot be read.
        GitLimitExceeded: It took too long, or the mirror would be too large.
        CommitNotFound: The origin does not have `commit`.
        SealedValueError: The credential cannot be opened.
    """
    if (reason := validate_origin(repository.origin)) is not None:
        raise InvalidOrigin(f"{repository.full_name}: The origin is not permitted. {reason}")
    folder = _folder(repository.pk)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder) as lock:
        update = _Update(repository, folder, lock)
        update.run()
        if commit is not None:
            update.fetch_commit(commit)
        Repository.objects.filter(pk=repository.pk).update(mirrored_at=ClockTimestamp())
        update.join_packs()


def delete_mirror(repository_id: int) -> None:
    """Delete the mirror of a repository that has no row any more."""
    folder = _folder(repository_id)
    if folder.is_dir():
        with _locked(folder):
            shutil.rmtree(folder)


def mirrored_ids(*, min_age: timedelta = timedelta(0)) -> list[int]:
    """Return the numbers of the repositories that have a folder, in order.

    Args:
        min_age: The age that a folder must have.
    """
    before = time.time() - min_age.total_seconds()
    with contextlib.suppress(FileNotFoundError):
        folders = [entry for entry in Path(settings.MIRROR_DIR).iterdir() if entry.stat().st_mtime <= before]
        return sorted(int(entry.name) for entry in folders if entry.name.isdecimal() and entry.name.isascii())
    return []


def _folder(repository_id: int) -> Path:
    return Path(settings.MIRROR_DIR, str(repository_id))


def _wrong_folder(origin: str) -> str | None:
    if not settings.REPOSITORY_ROOT:
        return "A folder is accepted only below REPOSITORY_ROOT, which is not set."
    root, path = Path(settings.REPOSITORY_ROOT).resolve(), Path(origin).resolve()
    if root not in path.parents or any(not c.isprintable() for c in origin):
        return f"The folder must be below REPOSITORY_ROOT ({root})."
    if not ((path / "HEAD").is_file() and (path / "objects").is_dir()):
        return "The folder must be a bare git repository."
    return _foreign_content(path)


def _foreign_content(path: Path) -> str | None:
    """Return how a folder borrows content from outside, or None.

    Git follows all of these with the rights of this process. So a folder below REPOSITORY_ROOT could hand out the
    commits of a repository that only this process may read.
    """
    for name in ("commondir", "objects/info/alternates", "objects/info/http-alternates"):
        if (path / name).exists():
            return f"The folder must not have the file {name}: it would borrow content of another repository."
    pending = [path]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    return f"The folder must not have symbolic links, as {entry.name[:100]!r} is."
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a mirror, so that one process writes it. Yields the descriptor, for the processes of git.

    Raises:
        GitLimitExceeded: Another process holds it for LOCK_SECONDS.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise GitLimitExceeded("Another process is updating the mirror. Retry later.") from None
            time.sleep(LOCK_PAUSE_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class _Origin:
    """Describes how git reaches the origin of a repository: its address, and variables with configuration."""

    address: str
    environment: dict[str, str]
    hidden: list[tuple[str, str]] = field(repr=False)


def _origin_of(repository: Repository, folder: Path) -> _Origin:
    """Return the address of the origin. A local one has a scheme: git's copy of a path has had vulnerabilities."""
    origin = repository.origin
    if origin.startswith("/"):
        address = f"file://{Path(origin).resolve()}"
    else:
        mirrors: dict[str, str] = settings.GIT_MIRRORS
        prefix = max((prefix for prefix in mirrors if origin.startswith(prefix)), key=len, default="")
        address = f"{mirrors[prefix]}{origin[len(prefix) :]}" if prefix else origin
        address = f"file://{address}" if address.startswith("/") else address
    scheme = urlsplit(address).scheme
    environment, hidden = {"GIT_ALLOW_PROTOCOL": scheme}, [(address, origin)]
    if scheme == "file":
        hidden.append((address.removeprefix("file://"), origin))  # git names the folder without the scheme, too
        environment["GIT_CONFIG_GLOBAL"] = str(_trusting_config(folder, address.removeprefix("file://")))
    elif repository.sealed_credential is not None:
        sealed = bytes(repository.sealed_credential)
        credential = sealing.unseal(CREDENTIAL, sealed, context=repository.full_name.lower()).decode()
        user, colon, password = credential.partition(":")
        basic = base64.b64encode((credential if colon else f"x-access-token:{credential}").encode()).decode()
        # In the environment, which other accounts cannot read. Redirects are off, so no other host gets the header.
        environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader"}
        environment["GIT_CONFIG_VALUE_0"] = f"Authorization: Basic {basic}"
        hidden += [(basic, "***"), (password if colon else user, "***")]
    return _Origin(address, environment, hidden)


def _trusting_config(folder: Path, origin: str) -> Path:
    """Write the configuration with which git reads a folder of another account, and return its path."""
    quoted = origin.replace("\\", "\\\\").replace('"', '\\"')
    path = folder / "gitconfig"
    path.write_text(f'[safe]\n\tdirectory = "{quoted}"\n\tdirectory = "{quoted}/.git"\n')
    return path


class _Update:
    """One update of a mirror, under its lock."""

    def __init__(self, repository: Repository, folder: Path, lock: int) -> None:
        self._lock = lock
        self._mirror, self._new = folder / "mirror.git", folder / "new.git"
        self._origin = _origin_of(repository, folder)
        self._is_first = not self._mirror.is_dir()
        self._git_dir = self._new if self._is_first else self._mirror
        self._deadline = time.monotonic() + settings.MIRROR_TIMEOUT_SECONDS

    def run(self) -> None:
        if self._is_first:
            shutil.rmtree(self._new, ignore_errors=True)
            self._new.mkdir(mode=0o700)
        else:
            _remove_leftovers(self._git_dir)
        head, object_format = self._read_head()  # of an empty folder, too: git needs no repository for it
        if self._is_first:
            self._git("init", "--quiet", "--bare", "--template=", f"--object-format={object_format}")
        self._fetch("--prune", *REFSPECS)
        if head is not None:
            self._git("symbolic-ref", "HEAD", head)
        if self._is_first:
            self._new.rename(self._mirror)
            self._git_dir = self._mirror

    def fetch_commit(self, commit: str) -> None:
        """Fetch a commit by its id, unless the mirror has it."""
        if COMMIT.fullmatch(commit) is None:
            raise CommitNotFound(f"{commit[:64]!r} is not a full commit id.")
        with contextlib.suppress(GitFailed):
            self._git("cat-file", "-e", f"{commit}^{{commit}}")
            return
        try:
            self._fetch(f"{commit}:{COMMIT_REFS}{commit}")
        except GitFailed as error:
            raise CommitNotFound(f"The origin does not have the commit {commit}. {error}") from None

    def join_packs(self) -> None:
        """Join the packs if there are many. The mirror is complete without it, so a failure is only logged.

        Git writes the new pack before it deletes the old ones, and has twice the limit for this time.
        """
        if len(list(self._git_dir.glob("objects/pack/*.pack"))) <= MAX_PACKS:
            return
        # Unreachable commits are kept: a job may check them out.
        arguments = ["repack", "-a", "-d", "--keep-unreachable", "--quiet", "--no-write-bitmap-index"]
        try:
            self._git(*arguments, watched_bytes=2 * settings.MIRROR_LIMIT_BYTES)
        except (GitFailed, GitLimitExceeded) as error:
            log.warning("the packs of %s were not joined: %s", self._mirror, error)
            _remove_leftovers(self._git_dir)

    def _read_head(self) -> tuple[str | None, str]:
        """Return the default branch of the origin, None if the origin is empty, and its object format."""
        listed = self._git("ls-remote", "--symref", "--end-of-options", self._origin.address, "HEAD").decode()
        head, object_format = None, "sha1"
        for line in listed.splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                head = value.removeprefix("ref: ")
            elif name == "HEAD" and len(value) == 64:
                object_format = "sha256"
        return head, object_format

    def _fetch(self, *arguments: str) -> None:
        options = [argument for argument in arguments if argument.startswith("--")]
        refspecs = [argument for argument in arguments if not argument.startswith("--")]
        flags = ["--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance"]
        self._git("fetch", *flags, *options, "--end-of-options", self._origin.address, *refspecs)

    def _git(self, *arguments: str, watched_bytes: int | None = None) -> bytes:
        """Run git for the mirror.

        Args:
            arguments: The subcommand and its arguments.
            watched_bytes: The size that the mirror may have meanwhile; by default MIRROR_LIMIT_BYTES.
        """
        limit = settings.MIRROR_LIMIT_BYTES
        limits = GitLimits(seconds=max(0.0, self._deadline - time.monotonic()), file_bytes=limit)
        return run_git(
            self._git_dir,
            *arguments,
            limits=limits,
            environment=self._origin.environment,
            watch=_size_watch(self._git_dir, watched_bytes or limit),
            hidden=self._origin.hidden,
            inherited=[self._lock],
        )


def _remove_leftovers(git_dir: Path) -> None:
    """Delete the temporary files and locks of a git process that was killed. No other process writes the mirror."""
    for path in [*git_dir.glob("objects/pack/tmp_*"), *git_dir.glob("objects/pack/.tmp-*"), *git_dir.rglob("*.lock")]:
        path.unlink(missing_ok=True)


def _size_watch(folder: Path, limit: int) -> Callable[[], str | None]:
    """Return a function that measures a folder from time to time, and returns the exceeded limit."""
    next_at = 0.0

    def watch() -> str | None:
        nonlocal next_at
        began = time.monotonic()
        if began < next_at:
            return None
        total = sum(_size(f"{parent}/{name}") for parent, _, names in os.walk(folder) for name in names)
        took = time.monotonic() - began
        next_at = began + took + max(MEASURE_SECONDS, 5 * took)
        return f"The mirror has more than {limit:,} bytes (limited by MIRROR_LIMIT_BYTES)." if total > limit else None

    return watch


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # git renames its files
        return 0
