"""What the processes write: one line each, no bodies, no lease ids (the access log carries the route, not the path)."""

from typing import Any


def logging_config(level: str) -> dict[str, Any]:
    """The logging of all processes, for `logging.config.dictConfig`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"redaction": {"()": "orchestrator.http.observability.log_redaction.Redaction"}},
        "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["redaction"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Our own line (orchestrator.access) tells of every request, by its route. Django's has the path.
            "django.request": {"level": "ERROR"},
            "django.server": {"level": "ERROR", "propagate": True},
            "django.security.DisallowedHost": {"level": "CRITICAL"},  # a traceback for whoever knocks
            # The server's own handlers know nothing of redaction: its lines go through ours, its access log nowhere.
            "uvicorn": {"level": "INFO", "propagate": True},
            "uvicorn.access": {"level": "CRITICAL", "propagate": False},
        },
    }
