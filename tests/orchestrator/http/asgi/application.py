"""An ASGI application for the server's own limits: WebSockets that echo, and a response without end."""

import asyncio
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)

from orchestrator.http.asgi.router import Router  # noqa: E402 - needs the settings
from orchestrator.http.asgi.sockets import CloseSocket, DropSocket, SendText, SocketDriver  # noqa: E402 - likewise
from orchestrator.http.asgi.websocket_protocol import EXTENSION  # noqa: E402 - likewise


async def echo(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(len(message.get("text") or ""))})


async def flood(scope, receive, send):
    gone = asyncio.ensure_future(receive())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


class EchoSession:
    """Answers `close` and `drop` with that, `sleep` after an operation, and any other text with the room and the text."""

    kind = phase = "echo"
    accepts_frames = True

    def __init__(self, room):
        self.room, self.deadline, self.controls = room, None, 0

    def parse(self, text):
        return text

    def receive(self, text, now):
        match text:
            case "close":
                return [CloseSocket(1000, "on demand")]
            case "drop":
                return [DropSocket()]
            case "sleep":
                return ["an operation"]
            case "timer":
                self.deadline = now + 0.1
                return []
        return [SendText(f"{self.room} {len(text)}")]

    def receive_bytes(self, now):
        return []

    def receive_control(self, now):
        self.controls += 1
        return []

    def advance(self, now):
        self.deadline = None
        return [SendText(f"time {self.controls}")]

    def resolve(self, result, now):
        return [SendText(result)]

    def fail_operation(self, now):
        return [DropSocket()]

    def end_connection(self):
        return []

    def shut_down(self):
        return [CloseSocket(1001, "server shutting down")]


async def slept(_operation, ended):
    await asyncio.wait({ended}, timeout=0.05)
    return "slept"


async def room(scope, receive, send):
    await receive()
    scope["extensions"][EXTENSION].limit_messages(200_000)
    await send({"type": "websocket.accept"})
    await SocketDriver(EchoSession(scope["path_params"]["room"]), slept, scope, receive, send).run()


application = Router(requests=flood, long_polls=flood, websockets={"/echo": echo, "/rooms/{room}/echo": room})
