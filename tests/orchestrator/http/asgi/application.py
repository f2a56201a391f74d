"""An ASGI application for the server's own limits: a WebSocket that echoes, and a response without end."""

import asyncio
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)

from orchestrator.http.asgi.router import Router  # noqa: E402 - needs the settings


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


application = Router(requests=flood, long_polls=flood, websockets={"/echo": echo})
