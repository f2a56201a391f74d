"""How this project runs uvicorn: one place for the options that every web process needs."""

from typing import Any

from django.conf import settings

from orchestrator.http.asgi.server_protocols import LimitedHttpProtocol, LimitedWebSocketProtocol


def uvicorn_options(**changes: Any) -> dict[str, Any]:
    """Returns the keyword arguments of `uvicorn.Config` with the limits of the settings, updated by `changes`.

    uvicorn's access log stays off: paths hold lease ids. Its other lines go through the handlers of the settings, which
    redact. Idle connections are kept for longer than workers are silent.
    """
    options: dict[str, Any] = {
        "app": "config.asgi:application",
        "http": LimitedHttpProtocol,
        "ws": LimitedWebSocketProtocol,
        "ws_max_size": settings.WEBSOCKET_MESSAGE_BYTES,
        "ws_per_message_deflate": False,  # a small message could unpack into a large one
        "lifespan": "off",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,  # settings.BEHIND_PROXY decides what those count
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 25,
    }
    return options | changes
