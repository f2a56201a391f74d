"""Defines the WSGI application: short requests (REST, admin), for any WSGI server."""

import gc
import os

from django.core.wsgi import get_wsgi_application

from config.gc_freeze import freeze_server
from config.postgres.embedded import ensure_unless_given

gc.disable()  # until `freeze_server`
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
django_requests = get_wsgi_application()

from orchestrator.http.fast_path import FastPath  # noqa: E402 - needs the settings
from orchestrator.http.wsgi import FastPathWSGI  # noqa: E402 - likewise
from orchestrator.protocols.native.fast_routes import ROUTES as NATIVE_ROUTES  # noqa: E402 - likewise
from orchestrator.protocols.shithub.fast_routes import ROUTES as SHITHUB_ROUTES  # noqa: E402 - likewise

application = FastPathWSGI(FastPath([*NATIVE_ROUTES, *SHITHUB_ROUTES]), django_requests)
freeze_server()
