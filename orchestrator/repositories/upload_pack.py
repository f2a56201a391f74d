"""Runs `git upload-pack` for clients: one process for each request, whose output is read while it is sent.

A process is bounded by the kernel, and the number of processes by slots. A client has at most half of the slots, so
that a few slow readers do not stop the fetches of all others.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Final

from django.conf import settings

from orchestrator.repositories.git import GitLimits, git_command, git_environment, kill_group, readable_message

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 64 << 10
MAX_WAITING: Final = 256  # requests without a slot
CPU_SECONDS: Final = 900  # of each process: a complete clone of a large repository takes minutes
MESSAGE_BYTES: Final = 2048


class NoSlot(Exception):
    """All slots are in use, and none became free in time."""


class TransferSlots:
    """Limits the processes of this web process. Used from one event loop."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self._running: Counter[Hashable] = Counter()
        self._waiting = 0

    @asynccontextmanager
    async def slot(self, client: Hashable) -> AsyncIterator[None]:
        """Reserve a slot for the block.

        Args:
            client: The runner, token or network that requests.

        Raises:
            NoSlot: None became free within GIT_QUEUE_SECONDS.
        """
        if self._waiting >= MAX_WAITING:
            raise NoSlot
        await self._acquire(client)
        try:
            yield
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
            async with self._condition:
                self._condition.notify_all()

    async def _acquire(self, client: Hashable) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(settings.GIT_QUEUE_SECONDS), self._condition:
                await self._condition.wait_for(lambda: self._is_free(client))
                self._running[client] += 1
        except TimeoutError:
            raise NoSlot from None
        finally:
            self._waiting -= 1

    def _is_free(self, client: Hashable) -> bool:
        share = max(1, settings.GIT_PROCESSES // 2)
        return self._running.total() < settings.GIT_PROCESSES and self._running[client] < share


async def is_readable(mirror: Path) -> bool:
    """Return whether git can serve a repository at all: it lists the refs."""
    pack = await UploadPack.start(mirror, protocol="", request=None)
    try:
        return bool(await pack.read())
    finally:
        pack.kill()
        await pack.wait_killed()


class UploadPack:
    """One process of `git upload-pack`."""

    def __init__(self, process: asyncio.subprocess.Process, mirror: Path) -> None:
        self._process, self._mirror = process, mirror
        self._message = b""
        self._reading_messages = asyncio.create_task(self._read_messages())

    @classmethod
    async def start(cls, mirror: Path, *, protocol: str, request: IO[bytes] | None) -> "UploadPack":
        """Start a process.

        Args:
            mirror: The repository.
            protocol: The value of GIT_PROTOCOL, such as `version=2`; empty: version 0.
            request: The request of the client as a file at position 0; None: the process advertises its refs.
        """
        arguments = ["upload-pack", "--strict", "--stateless-rpc"]
        arguments += ["--http-backend-info-refs"] if request is None else []
        limits = GitLimits(seconds=settings.GIT_TRANSFER_SECONDS, cpu_seconds=CPU_SECONDS)
        process = await asyncio.create_subprocess_exec(
            *git_command(mirror, *arguments, str(mirror), limits=limits),
            cwd=mirror,
            env=git_environment(mirror, **({"GIT_PROTOCOL": protocol} if protocol else {})),
            stdin=asyncio.subprocess.DEVNULL if request is None else request.fileno(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=BLOCK_BYTES,
            start_new_session=True,
        )
        return cls(process, mirror)

    async def read(self) -> bytes:
        """Return the next bytes of the response; none at its end."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        return await self._process.stdout.read(BLOCK_BYTES)

    async def end(self) -> int:
        """Return the exit code after the end of the output. It is negative if a signal ended the process."""
        code = await self._process.wait()
        await asyncio.wait({self._reading_messages})  # a caller that is canceled does not cancel that task
        if code != 0:
            log.warning("git upload-pack ended with code %d: %s", code, self.message)
        return code

    @property
    def message(self) -> str:
        """Return the end of git's messages in one line, without the path of the mirror."""
        return readable_message(self._message, [(str(self._mirror), "the mirror")])

    def kill(self) -> None:
        """Kill the process and its children, unless it has ended. `wait_killed` waits for their ends.

        It does not wait, so that a task that is canceled twice, as at the end of the server, still kills them. Nothing
        else would end processes that are stopped, and others would continue until they write.
        """
        if self._process.returncode is None:
            kill_group(self._process.pid)

    async def wait_killed(self) -> None:
        """Wait until the process has ended and its exit was noticed."""
        while await self.read():  # the pipe must reach its end, or the exit is not noticed
            pass
        await self._process.wait()
        await asyncio.wait({self._reading_messages})

    async def _read_messages(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - a pipe
        while block := await self._process.stderr.read(BLOCK_BYTES):
            self._message = (self._message + block)[-MESSAGE_BYTES:]
