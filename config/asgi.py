"""The ASGI application: everything over HTTP, connections that wait included.

`manage.py serve` runs it with limits on connections and request heads, which ASGI leaves to the server. Behind another
ASGI server those are the operator's to set.
"""

import os

import django

from config.embedded_postgres import ensure_unless_given
from config.memory import freeze

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
django.setup(set_prefix=False)

from orchestrator.access.handler import ThreadedHandler  # noqa: E402 - needs the settings
from orchestrator.access.waiting import WaitingRoom  # noqa: E402 - likewise
from orchestrator.http.asgi.bodies import Application  # noqa: E402 - likewise
from orchestrator.http.asgi.router import Router  # noqa: E402 - likewise

# WebSocket applications by path. A session without I/O and its driver are registered here.
WEBSOCKETS: dict[str, Application] = {}

django_requests = ThreadedHandler()
application = Router(requests=django_requests, long_polls=WaitingRoom(django_requests), websockets=WEBSOCKETS)
freeze()
