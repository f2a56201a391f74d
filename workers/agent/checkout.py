"""Checks out one commit of one repository, as data: nothing that the repository holds is executed.

No hooks, filters, submodules, prompts, redirects or credentials; one protocol; a limit on size, files and time.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from workers.agent import subprocesses
from workers.agent.errors import AgentError
from workers.agent.object_transfer import open_below
from workers.agent.sanitize import counted, one_line, scrubbed
from workers.engines.contract import StopSignal
from workers.git_options import GIT_OPTIONS

# Owner and name: no user, port, query or escape, and no segment that climbs out of a mirror's folder.
REPOSITORY = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9.-]*/(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
OPTIONS = (*GIT_OPTIONS, "core.protectNTFS=true", "core.protectHFS=true", "advice.detachedHead=false")


class CheckoutFailed(AgentError):
    """The commit cannot be checked out. `str()` says why, for the person who submitted the job."""


class CheckoutStopped(AgentError):
    """A stop was requested before the checkout was complete."""


@dataclass(frozen=True)
class Bounds:
    """The limits of one checkout."""

    seconds: float = 300
    tree_bytes: int = 4 << 30  # .git and the files together
    files: int = 500_000

    @property
    def command_limits(self) -> subprocesses.CommandLimits:
        # git maps whole packs, so its address space is larger than what it writes.
        return subprocesses.CommandLimits(self.tree_bytes, self.tree_bytes + (2 << 30), int(self.seconds) * 2)


@dataclass(frozen=True)
class Mirrors:
    """Replaces URLs: prefix -> prefix of the mirror, the longest match wins, as git's `insteadOf`."""

    prefixes: Mapping[str, str]

    def address(self, repo_url: str) -> str:
        """Return the URL to fetch from."""
        match = max((prefix for prefix in self.prefixes if repo_url.startswith(prefix)), key=len, default="")
        return f"{_as_url(self.prefixes[match])}{repo_url[len(match) :]}" if match else repo_url


@dataclass(frozen=True)
class Checkout:
    """Checks out into a directory that belongs to `owner` already."""

    mirrors: Mirrors
    bounds: Bounds = Bounds()

    def fetch(
        self,
        repo_url: str,
        commit: str,
        *,
        into: Path,
        owner: int | None,
        stop: StopSignal,
        token: str = "",
        depth: int = 1,
    ) -> list[str]:
        """Leave the files of `commit` in `into`. Returns what is not there, a line each, for the log of the job.

        With a `token` the repository is one of the server, whose address may have another scheme and a port. With a
        `depth` of 0 the whole history of the commit is there.

        Raises:
            CheckoutFailed: The repository or the commit is invalid, missing or too large.
            CheckoutStopped: A stop was requested.
            OSError: An error of this machine, such as a full disk.
        """
        if not (token or REPOSITORY.fullmatch(repo_url)) or not COMMIT.fullmatch(commit):
            raise CheckoutFailed("repo_url must be https://host/owner/name, git_commit 40 or 64 hex digits")
        address = self.mirrors.address(repo_url)
        config = _config_file(into.with_name(into.name + ".gitconfig"), repo_url, address)
        watch = subprocesses.deadline_watch(
            time.monotonic() + self.bounds.seconds, _stop_requested(stop), _Size(into, self.bounds)
        )
        try:
            git = _Git(into, owner, config, repo_url, address, self.bounds, watch, token, depth)
            git.check_out(commit)
            return git.missing_content()
        finally:
            config.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Git:
    folder: Path
    owner: int | None
    config: Path
    repo_url: str
    address: str  # the URL to fetch from
    bounds: Bounds
    watch: Callable[[], str | None]
    token: str = field(default="", repr=False)
    depth: int = 1

    def check_out(self, commit: str) -> None:
        sha256 = ["--object-format=sha256"] if len(commit) == 64 else []
        self._run("init", "-q", "--template=", *sha256)
        fetch = ["fetch", "-q", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
        fetch += [f"--depth={self.depth}"] if self.depth else []
        self._run(*fetch, "--end-of-options", self.repo_url, commit)
        self._run("checkout", "-q", "--detach", "--no-recurse-submodules", "--force", commit, "--")
        head = self._run("rev-parse", "--verify", "--end-of-options", "HEAD").split()
        if head[-1:] != [commit]:
            raise CheckoutFailed(f"the repository returned another commit than {commit}")
        self._refuse(_Size(self.folder, self.bounds)(), "")

    def missing_content(self) -> list[str]:
        """Describe the files of Git LFS and the submodules, whose content is never fetched."""
        found = []
        if (self.folder / ".gitattributes").is_file():
            filtered = self._run("ls-files", "-z", "--", ":(attr:filter=lfs)").split("\0")
            pointers = [path for path in filtered if path and _is_pointer(self.folder, path)]
            found += _listed(pointers, "file is a Git LFS pointer", "files are Git LFS pointers")
        modules = self.folder / ".gitmodules"
        if modules.is_file() and not modules.is_symlink():
            with contextlib.suppress(CheckoutFailed):  # it names none, or is no configuration
                names = self._run("config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$")
                paths = [line.partition(" ")[2] for line in names.splitlines()]
                found += _listed(paths, "submodule is empty", "submodules are empty")
        return found

    def _run(self, subcommand: str, *arguments: str) -> str:
        options = [part for option in OPTIONS for part in ("-c", option)]
        command = [shutil.which("git") or "/usr/bin/git", *options, subcommand, *arguments]
        done = subprocesses.run_bound(
            command,
            folder=self.folder,
            environment=self._environment(),
            owner=self.owner,
            limits=self.bounds.command_limits,
            watch=self.watch,
        )
        self._refuse(done.kill_reason, done.tail)
        if done.code != 0:
            raise CheckoutFailed(self._error_message(subcommand, done.tail))
        return done.tail

    def _refuse(self, kill_reason: str | None, tail: str) -> None:
        if kill_reason == "stop":
            raise CheckoutStopped
        if kill_reason == "time":
            raise CheckoutFailed(f"the checkout took longer than {self.bounds.seconds:g} s")
        if kill_reason:
            raise CheckoutFailed(f"the repository is too large: {kill_reason}")
        if "No space left on device" in tail:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _error_message(self, subcommand: str, tail: str) -> str:
        if "not our ref" in tail or "couldn't find remote ref" in tail:
            return "the repository does not have this commit"
        return scrubbed(f"git {subcommand}: {tail or 'it ended without a message'}", self._hidden(), 600)

    def _hidden(self) -> list[tuple[str, str]]:
        """Return the texts that must not be in a message: where the mirror and the workspace are."""
        real, public = urlsplit(self.address), urlsplit(self.repo_url)
        mirror = [(self.address, self.repo_url), (real.path, self.repo_url), (real.netloc, public.netloc)]
        return [(str(self.folder), "the workspace"), *(mirror if self.address != self.repo_url else [])]

    def _environment(self) -> dict[str, str]:
        return self._credentials() | {
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.config),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/true",
            "GIT_ALLOW_PROTOCOL": urlsplit(self.address).scheme,
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
        }

    def _credentials(self) -> dict[str, str]:
        """Return the variables that give git the token: other accounts can read neither them nor a file."""
        if not self.token:
            return {}
        encoded = base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{self.address}.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {encoded}",
        }


class _Size:
    """Measures the checkout at intervals that grow with its size, and returns the limit that it exceeds."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._next = 0.0

    def __call__(self) -> str | None:
        begun = time.monotonic()
        if begun < self._next:
            return None
        exceeded = self._exceeded()
        took = time.monotonic() - begun
        self._next = begun + took + max(0.5, 5 * took)
        return exceeded

    def _exceeded(self) -> str | None:
        total, files = 0, 0
        for folder, _, names in os.walk(self._folder):
            files += len(names) + 1
            total += sum(_size(f"{folder}/{name}") for name in names)
            if files > self._bounds.files:
                return f"more than {counted(self._bounds.files, 'file')}"
            if total > self._bounds.tree_bytes:
                return f"more than {counted(self._bounds.tree_bytes, 'byte')}"
        return None


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # git moves its files about
        return 0


def _listed(paths: list[str], one: str, many: str) -> list[str]:
    """Return the sentence about these paths, with the first of them. Git's output is cut, so they may be more."""
    if not paths:
        return []
    examples = ", ".join(one_line(path, 100) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
    return [f"{len(paths):,} {one if len(paths) == 1 else many}: {examples}"]


def _is_pointer(folder: Path, path: str) -> bool:
    try:
        with open_below(folder, path) as file:
            return file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:
        return False


def _stop_requested(stop: StopSignal) -> Callable[[], str | None]:
    return lambda: "stop" if stop.requested.is_set() else None


def _as_url(mirror: str) -> str:
    # Without a scheme git would use its optimization for local clones, which has a history of vulnerabilities.
    return f"file://{mirror}" if mirror.startswith("/") else mirror


def _config_file(path: Path, repo_url: str, address: str) -> Path:
    """Write the only configuration that git reads besides its command line. Whoever reads it learns the mirror only."""
    lines = []
    if address != repo_url:
        lines += [f"[url {_quoted(address)}]", f"\tinsteadOf = {_quoted(repo_url)}"]
    if address.startswith("file://"):
        # The mirror belongs to another account than the slot's, and the operator named it.
        place = address.removeprefix("file://")
        lines += ["[safe]", *(f"\tdirectory = {_quoted(name)}" for name in (place, f"{place}.git", f"{place}/.git"))]
    path.unlink(missing_ok=True)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o644)
    return path


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@contextlib.contextmanager
def open_directory(workspace: Path, working_directory: str) -> Iterator[Path]:
    """Open a directory of the workspace, and yield a path that leads to it even if it is renamed.

    Raises:
        CheckoutFailed: `working_directory` is no directory below `workspace`, has a link in its path, or is closed to
            this account.
    """
    descriptor = _open_directory(workspace, _steps(working_directory))
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _open_directory(workspace: Path, names: list[str]) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(workspace, flags)
        for name in names:
            try:
                below = os.open(name, flags, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
    except (OSError, ValueError):
        raise CheckoutFailed("the working directory is not a directory of the repository") from None
    return descriptor


def _steps(path: str) -> list[str]:
    steps = [name for name in path.split("/") if name not in {"", "."}]
    if path.startswith("/") or ".." in steps:
        raise CheckoutFailed("the working directory must be relative and stay inside the repository")
    return steps
