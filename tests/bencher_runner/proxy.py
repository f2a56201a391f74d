"""A proxy between runners and the server that records each WebSocket frame with its time. It changes no byte.

An entry of a recording is a JSON object. `from` is `runner`, `server` or `harness`, `at` the time in seconds since the
beginning of the story, `connection` the number of the connection. The rest is one of:

    handshake, key     the path, and the name of the key (the key itself is never recorded)
    status             the status of the response to a handshake
    message            a text frame, parsed; pull tokens are replaced
    frame              another frame: `binary`, `ping`, `pong`
    close, reason      a Close frame
    end                the end of the connection
    action, …          what the harness did, before it did it
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from websockets.frames import Close, Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol

from tests.loopback_listener import LoopbackListener

REDACTED = "redacted"
UNKNOWN_KEY = "unknown"
_AUTHORIZATION = re.compile(rb"\r\nauthorization: *bearer +(\S+)", re.IGNORECASE)
_OTHER_FRAMES = {Opcode.BINARY: "binary", Opcode.PING: "ping", Opcode.PONG: "pong"}

Entry = dict[str, Any]


class Recording:
    """The entries of one story. Threads may wait for an entry."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._changed = threading.Condition()
        self._began = time.monotonic()
        self._connections = 0

    @property
    def entries(self) -> list[Entry]:
        with self._changed:
            return list(self._entries)

    def connect(self) -> int:
        """Return the number of a new connection."""
        with self._changed:
            self._connections += 1
            return self._connections

    def add(self, source: str, **entry: Any) -> None:
        """Add an entry, and wake the threads that wait."""
        with self._changed:
            self._entries.append({"at": round(time.monotonic() - self._began, 3), "from": source, **entry})
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[list[Entry]], Any], seconds: float, what: str) -> Any:
        """Return the value of the condition as soon as it is true.

        Args:
            condition: A function of all entries.
            seconds: The longest wait.
            what: A description for the AssertionError after it.
        """
        with self._changed:
            found = self._changed.wait_for(lambda: condition(self._entries), seconds)
        assert found, f"within {seconds:.0f} s there was no {what}"
        return found

    def messages(self, source: str, event: str) -> list[Entry]:
        """Return the entries with this message."""
        return [entry for entry in self.entries if is_message(entry, source, event)]


def is_message(entry: Entry, source: str, event: str) -> bool:
    """Return whether an entry is this message."""
    return entry["from"] == source and entry.get("message", {}).get("event") == event


class RecordingProxy(LoopbackListener):
    """Passes connections on to the server. `recording` gets the entries of connections that begin from now on."""

    def __init__(self, server: tuple[str, int], keys: Mapping[str, str]) -> None:
        """Prepare.

        Args:
            server: Host and port of the server. It may be absent for a time.
            keys: The names of keys by the keys. The caller may add some.
        """
        super().__init__()
        self._server, self._keys = server, keys
        self.recording = Recording()

    async def accept(self, runner: asyncio.StreamReader, to_runner: asyncio.StreamWriter) -> None:
        recording = self.recording
        number = recording.connect()
        try:
            ends = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError)
            with contextlib.suppress(*ends):
                await self._connect(recording, number, runner, to_runner)
        finally:
            to_runner.close()

    async def _connect(
        self, recording: Recording, number: int, runner: asyncio.StreamReader, to_runner: asyncio.StreamWriter
    ) -> None:
        head = await runner.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode()
        recording.add("runner", connection=number, handshake=path, key=self._name_of_key(head))
        try:
            server, to_server = await asyncio.open_connection(*self._server)
        except OSError:
            recording.add("server", connection=number, end=True)
            return
        try:
            to_server.write(head)
            answer = await server.readuntil(b"\r\n\r\n")
            recording.add("server", connection=number, status=int(answer.split(b" ", 2)[1]))
            to_runner.write(answer)
            from_runner = Decoder(recording, "runner", number, Protocol(SERVER, max_size=None))
            from_server = Decoder(recording, "server", number, Protocol(CLIENT, max_size=None))
            is_open = answer.startswith(b"HTTP/1.1 101 ")
            pumps = {
                asyncio.ensure_future(_pump(runner, to_server, from_runner if is_open else None)),
                asyncio.ensure_future(_pump(server, to_runner, from_server if is_open else None)),
            }
            _, others = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                other.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await other
        finally:
            to_server.close()

    def _name_of_key(self, head: bytes) -> str | None:
        found = _AUTHORIZATION.search(head)
        return self._keys.get(found[1].decode(), UNKNOWN_KEY) if found else None


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, decoder: Decoder | None) -> None:
    """Pass bytes on until the end of the connection. Frames are recorded before, so that none follows its reply."""
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            if decoder is not None:
                decoder.receive(data)
            target.write(data)
            await target.drain()
    if decoder is not None:
        decoder.end()


class Decoder:
    """Records the frames of one direction."""

    def __init__(self, recording: Recording, source: str, connection: int, protocol: Protocol) -> None:
        """Begin after the handshake.

        Args:
            recording: The recording.
            source: The sender of the frames.
            connection: The number of the connection.
            protocol: The receiving side. What it would reply is not sent.
        """
        self._recording, self._source, self._connection = recording, source, connection
        self._protocol = protocol
        self._text = b""

    def receive(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._protocol.data_to_send()
        for frame in self._protocol.events_received():
            if isinstance(frame, Frame):
                self._record(frame)

    def end(self) -> None:
        self._add(end=True)

    def _record(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._text += bytes(frame.data)
            if frame.fin:
                message, self._text = _redacted(json.loads(self._text)), b""
                self._add(message=message)
        elif frame.opcode is Opcode.CLOSE:
            close = Close.parse(frame.data)
            self._add(close=int(close.code), reason=close.reason)
        else:
            self._add(frame=_OTHER_FRAMES[frame.opcode])

    def _add(self, **entry: Any) -> None:
        self._recording.add(self._source, connection=self._connection, **entry)


def _redacted(message: Entry) -> Entry:
    return message | {"oci_token": REDACTED} if "oci_token" in message else message
