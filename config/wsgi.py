"""Defines the WSGI application: short requests (REST, admin), for any WSGI server."""

import os

from django.core.wsgi import get_wsgi_application

from config.gc_freeze import freeze_startup_objects
from config.postgres.embedded import ensure_unless_given

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
application = get_wsgi_application()
freeze_startup_objects()
