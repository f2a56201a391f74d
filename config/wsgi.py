"""The WSGI application: short requests (REST, admin), for any WSGI server."""

import os

from django.core.wsgi import get_wsgi_application

from config.embedded_postgres import ensure_unless_given
from config.memory import freeze

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
application = get_wsgi_application()
freeze()
