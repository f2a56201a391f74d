"""The uvicorn server with this project's options and its end, in one process or several."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from typing import Any

import uvicorn
from django.conf import settings
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from orchestrator.http.asgi.graceful_restart import START_SECONDS, GracefulRestart
from orchestrator.http.asgi.http_protocol import LimitedHttpProtocol
from orchestrator.http.asgi.socket_activation import inherited_sockets, report_ready
from orchestrator.http.asgi.websocket_protocol import LimitedWebSocketProtocol

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0  # for canceled requests to release what they have; the units stop after 30 s, 5 s after the grace
LAST_REQUEST_SECONDS = 1.0  # how long an idle client of a process that ends may send one more request
ACCEPT_QUEUE = 65_535  # connections that wait for `accept`; the kernel lowers it to net.core.somaxconn (4096)


def uvicorn_options(**changes: Any) -> dict[str, Any]:
    """Return the keyword arguments of `uvicorn.Config` with the limits of the settings, updated by `changes`.

    uvicorn's access log is off, because paths contain lease ids. Its other lines use the handlers of the settings,
    which redact secrets. `timeout_keep_alive` exceeds the pause between two requests of a worker.
    """
    options: dict[str, Any] = {
        "app": "config.asgi:application",
        "http": LimitedHttpProtocol,
        "ws": LimitedWebSocketProtocol,
        "ws_max_size": settings.WEBSOCKET_MESSAGE_BYTES,
        "ws_per_message_deflate": False,  # a small message could unpack into a large one
        # A runner reads one frame a second while it executes. Its pong comes too late after some minutes of pings.
        "ws_ping_interval": None,
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # settings.BEHIND_PROXY decides whether those headers are used
        # With uvicorn's 2048, a burst of 2,640 clients overflowed the queue. The kernel then drops handshakes, and a
        # client repeats one after a second: every new connection of another tenant took that second, too.
        "backlog": ACCEPT_QUEUE,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 25,
        # Of several processes, one that answers nothing for so long is replaced. A start takes seconds.
        "timeout_worker_healthcheck": START_SECONDS,
    }
    return options | changes


class GracefulServer(uvicorn.Server):
    """A uvicorn server that ends connections only after a response, and with the tasks that it has canceled."""

    is_replaced = False  # another process accepts connections after this one, from the same sockets

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer clients that another process will serve, then wait for the requests that uvicorn cancels.

        uvicorn raises the signal again at once, and SIGTERM then ends the process before a canceled request has run:
        the git processes of fetches were left behind.
        """
        if self.is_replaced:
            await self._end_connections()
        await super().shutdown(sockets)
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    async def _end_connections(self) -> None:
        """Answer what clients have sent already or send within a second, each time as the last response.

        uvicorn closes an idle connection at once. A client whose request is on its way then has neither a response nor
        the right to repeat it.
        """
        for server in self.servers:
            server.close()  # the sockets of other processes still listen, and share the accept queue
        deadline = time.monotonic() + LAST_REQUEST_SECONDS
        while self.server_state.connections and time.monotonic() < deadline:
            for connection in self.server_state.connections:
                if isinstance(connection, LimitedHttpProtocol):
                    connection.end_after_response()
            await asyncio.sleep(0.05)


class RestartableServer(GracefulServer):
    """A server that SIGHUP restarts (`asgi.graceful_restart`)."""

    restart: GracefulRestart | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        listening: Any = [found for server in self.servers for found in server.sockets]
        self.restart = GracefulRestart(listening, self._hand_over)
        self.restart.start()
        report_ready()

    def _hand_over(self) -> None:
        """Do what SIGTERM does, but for the end of the process."""
        self.is_replaced = True
        handler: Any = signal.getsignal(signal.SIGTERM)  # uvicorn's, behind the callbacks of `on_shutdown`
        handler(signal.SIGTERM, None)
        self._captured_signals.remove(signal.SIGTERM)  # uvicorn would raise it again


class SharingProcess(multiprocess.Process):
    """One of several processes that share the listening sockets."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = server = GracefulServer(config=self.config)
            server.is_replaced = True
        return self._server


def run_server(**changes: Any) -> None:
    """Serve until a signal ends the process; in `workers` processes that share the port if that is above 1.

    Args:
        changes: Options of `uvicorn.Config` that differ from `uvicorn_options`.
    """
    config = uvicorn.Config(**uvicorn_options(**changes))
    inherited = inherited_sockets()
    for found in inherited:
        log.info("listening on %s, a socket that was passed to this process", found.getsockname())
    if config.workers > 1:
        multiprocess.Process = SharingProcess  # type: ignore[misc]  # `Multiprocess` has no parameter for it
        multiprocess.Multiprocess(config, sockets=inherited or [config.bind_socket()]).run()
        return
    server = RestartableServer(config)
    server.is_replaced = bool(inherited)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(inherited or None)
    if not server.started:
        sys.exit(STARTUP_FAILURE)
    if server.restart is not None and server.restart.has_handed_over:
        server.restart.execute_anew()
