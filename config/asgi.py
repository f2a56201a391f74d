"""The ASGI application: everything over HTTP, connections that wait included, for any ASGI server."""

import os

import django

from config.embedded_postgres import ensure_unless_given
from config.memory import freeze

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
django.setup(set_prefix=False)

from orchestrator.access.bodies import MeasuredBodies  # noqa: E402 - needs the settings
from orchestrator.access.handler import ThreadedHandler  # noqa: E402 - likewise
from orchestrator.access.waiting import WaitingRoom  # noqa: E402 - likewise

application = MeasuredBodies(WaitingRoom(ThreadedHandler()))
freeze()
