"""Reports the open channels of this process to the database, so that operators see those of all processes."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError

from orchestrator.core.db_scope import release_connection_after
from orchestrator.http.asgi.thread_pools import ThreadPool
from orchestrator.protocols.bencher.channel.session import ChannelSession
from orchestrator.services.runner_channels import REPORT_SECONDS, report_channels
from runtime_jobs.db_errors import log_level_of
from workers.models import Worker

log = logging.getLogger(__name__)

_report_channels = release_connection_after(report_channels)


class ChannelPresence:
    """The open channels of a process. A task reports them while there are any, and then that there are none."""

    def __init__(self, threads: ThreadPool, *, period_seconds: float = REPORT_SECONDS) -> None:
        """Begin without channels.

        Args:
            threads: The threads of requests.
            period_seconds: The time between two reports.
        """
        self._threads, self._period = threads, period_seconds
        self._process = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._open: dict[ChannelSession, Worker] = {}
        self._versions: dict[int, str] = {}  # as they were reported
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def opened(self, session: ChannelSession, worker: Worker) -> Iterator[None]:
        """Count a channel while the block runs; in the event loop."""
        self._open[session] = worker
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._report())
        try:
            yield
        finally:
            del self._open[session]

    async def _report(self) -> None:
        has_reported = False
        while self._open or has_reported:
            await asyncio.sleep(self._period)
            channels: dict[int, Counter[str]] = {}
            versions: dict[int, str] = {}
            for session, worker in self._open.items():
                channels.setdefault(worker.pk, Counter())[str(session.phase)] += 1
                if session.version and session.version != self._versions.get(worker.pk, worker.agent_version):
                    versions[worker.pk] = session.version
            try:
                await self._threads.run(
                    _report_channels, self._process, channels, versions, client="channels of runners"
                )
            except (DatabaseError, InterfaceError) as error:  # the next report is as good
                log.log(log_level_of(error), "the open channels were not reported: %s", type(error).__name__)
            except Exception:  # a bug must not end the reports; its traceback is in the log
                log.warning("the open channels were not reported", exc_info=True)
            else:
                self._versions |= versions
                has_reported = bool(channels)
