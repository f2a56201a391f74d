"""Configures logging: one line a record, without bodies and lease ids (the access log has the route, not the path)."""

import logging
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether this line of Django is about an unexpected error: 503 is an answer that the server means."""
    return getattr(record, "status_code", None) != 503


def logging_config(level: str) -> dict[str, Any]:
    """Return the configuration of all processes for `logging.config.dictConfig`.

    Args:
        level: The lowest level that is written, for example `INFO`.

    Raises:
        ImproperlyConfigured: There is no such level.
    """
    if level not in LEVELS:
        raise ImproperlyConfigured(f"LOG_LEVEL={level!r}: one of {', '.join(LEVELS)} is needed")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {
            "redaction": {"()": "orchestrator.http.observability.log_redaction.Redaction"},
            "refusals": {"()": "django.utils.log.CallbackFilter", "callback": _is_unexpected},
        },
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["redaction"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # orchestrator.access logs each request by its route. Django's line would have the path.
            "django.request": {"level": "ERROR", "filters": ["refusals"]},
            # runtime_jobs.db_outage logs an outage once; the pool logs each attempt to connect.
            "psycopg.pool": {"level": "ERROR"},
            "django.server": {"level": "ERROR", "propagate": True},
            "django.security.DisallowedHost": {"level": "CRITICAL"},  # otherwise a traceback for each scanner's request
            # uvicorn's own handlers do not redact: its lines pass through ours, its access log is off.
            "uvicorn": {"level": "INFO", "propagate": True},
            "uvicorn.access": {"level": "CRITICAL", "propagate": False},
        },
    }
