"""Starts git for the server: without configuration, hooks, filters and prompts of the machine, and within limits.

Every process is in a session of its own and is killed as a group. `timeout` kills it at its limit also if this process
has died. setpriv could tie both lives together, but sets capabilities, which the units of systemd forbid.
"""

import contextlib
import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.repositories.errors import GitFailed, GitLimitExceeded
from workers.git_options import GIT_OPTIONS

OPTIONS: Final = (
    *GIT_OPTIONS,
    "fetch.unpackLimit=1",  # each fetch stores one pack, so that the number of files stays small
    "fetch.writeCommitGraph=false",
    "transfer.advertiseSID=false",
    "transfer.hideRefs=refs/orchestrator",
    # One process has a processor and a bounded part of the memory, however large the repository is.
    "pack.threads=1",
    "pack.windowMemory=64m",
    "pack.deltaCacheSize=32m",
    "core.packedGitLimit=512m",
    "core.bigFileThreshold=16m",
    # A runner fetches the commit of its job, also when the branch has moved (contract 1.5).
    "uploadpack.allowAnySHA1InWant=true",
    "uploadpack.allowFilter=false",
)
MESSAGE_BYTES: Final = 4096  # of git's messages, the last ones
TICK_SECONDS: Final = 0.2
GRACE_SECONDS: Final = 5
_URL_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True)
class GitLimits:
    """The limits of one git process and its children.

    Attributes:
        seconds: Until it is killed.
        cpu_seconds: Of each process.
        output_bytes: Of its standard output.
        file_bytes: Of each file that it writes.
        memory_bytes: Of its address space. Git maps whole packs, so this is larger than what it uses.
    """

    seconds: float = 30.0
    cpu_seconds: int = 600
    output_bytes: int = 1 << 20
    file_bytes: int = 1 << 20
    memory_bytes: int = 8 << 30


def git_command(git_dir: Path, *arguments: str, limits: GitLimits) -> list[str]:
    """Return the command line of git for one repository.

    Args:
        git_dir: The bare repository.
        arguments: The subcommand and its arguments.
        limits: Its limits. The caller enforces the time, before `timeout` does, and the output.
    """
    options = [part for option in OPTIONS for part in ("-c", option)]
    return [
        *(_program("timeout"), "--signal=KILL", str(math.ceil(limits.seconds) + GRACE_SECONDS)),
        *(_program("prlimit"), f"--fsize={limits.file_bytes}", f"--as={limits.memory_bytes}"),
        *(f"--cpu={limits.cpu_seconds}", "--core=0", "--"),
        *(_program("git"), *options, f"--git-dir={git_dir}", *arguments),
    ]


def git_environment(git_dir: Path, **further: str) -> dict[str, str]:
    """Return the variables of a git process: none of this process, and `further` ones."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/true",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_CEILING_DIRECTORIES": str(git_dir.parent),
        **further,
    }


def run_git(
    git_dir: Path,
    *arguments: str,
    limits: GitLimits = GitLimits(),
    environment: Mapping[str, str] | None = None,
    watch: Callable[[], str | None] = lambda: None,
    hidden: Sequence[tuple[str, str]] = (),
    inherited: Sequence[int] = (),
) -> bytes:
    """Run git until it ends, and return its standard output.

    Args:
        git_dir: The bare repository.
        arguments: The subcommand and its arguments. The caller has checked those that come from outside.
        limits: Its limits.
        environment: Further variables.
        watch: Called several times a second. Returns why git must end, or None.
        hidden: Texts of which git's message must have none, each with its replacement.
        inherited: Descriptors that git keeps open, such as that of a lock.

    Raises:
        GitFailed: Git ended with an error.
        GitLimitExceeded: Git exceeded a limit, or `watch` returned a reason.
    """
    process = subprocess.Popen(
        git_command(git_dir, *arguments, limits=limits),
        cwd=git_dir,
        env=git_environment(git_dir, **(environment or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=inherited,
        start_new_session=True,
    )
    with process:
        try:
            output, message = _read(process, arguments[0], limits, watch)
        finally:
            kill_group(process.pid)  # unreaped until here, so that no other group has this number
        code = process.wait()
    if code != 0:
        raise GitFailed(f"git {arguments[0]}: {readable_message(message, [(str(git_dir), 'the mirror'), *hidden])}")
    return output


def kill_group(pid: int) -> None:
    """Kill the process group of a child that was started in a session of its own and has not been reaped."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _read(
    process: "subprocess.Popen[bytes]", subcommand: str, limits: GitLimits, watch: Callable[[], str | None]
) -> tuple[bytes, bytes]:
    """Read both outputs to their ends, and wait for the process. Returns the output and the end of the messages."""
    assert process.stdout is not None  # noqa: S101 - pipes above
    assert process.stderr is not None  # noqa: S101
    deadline = time.monotonic() + limits.seconds
    blocks: list[bytes] = []
    size, message = 0, b""
    with selectors.PollSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(TICK_SECONDS):
                block = os.read(key.fd, 1 << 16)
                if not block:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    message = (message + block)[-MESSAGE_BYTES:]
                else:
                    blocks.append(block)
                    size += len(block)
            if size > limits.output_bytes:
                raise GitLimitExceeded(f"git {subcommand} printed more than {limits.output_bytes:,} bytes.")
            if time.monotonic() >= deadline:
                raise GitLimitExceeded(f"git {subcommand} took longer than {limits.seconds:g} s.")
            if (reason := watch()) is not None:
                raise GitLimitExceeded(reason)
    # Both outputs are closed, so that git is ending. Its children may still write files.
    try:
        process.wait(max(TICK_SECONDS, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise GitLimitExceeded(f"git {subcommand} took longer than {limits.seconds:g} s.") from None
    return b"".join(blocks), message


def readable_message(message: bytes, hidden: Sequence[tuple[str, str]]) -> str:
    """Return git's last messages in one line, without control characters and without the hidden texts."""
    text = message.decode(errors="replace")
    for secret, replacement in hidden:
        if secret:
            text = text.replace(secret, replacement)
    text = _URL_USER.sub("", text)
    lines = [" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line)[-600:] or "it ended without a message"


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/bin/{name}"
