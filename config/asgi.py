"""The ASGI application: everything over HTTP, connections that wait included, for any ASGI server."""

import os

from django.core.asgi import get_asgi_application

from config.embedded_postgres import ensure_unless_given

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
django_application = get_asgi_application()

from orchestrator.access.bodies import MeasuredBodies  # noqa: E402 - needs the settings
from orchestrator.access.waiting import WaitingRoom  # noqa: E402 - likewise

application = MeasuredBodies(WaitingRoom(django_application))
