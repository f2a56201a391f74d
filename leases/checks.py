"""Settings that make no sense together, told at the start and not at night."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

AT_LEAST_A_SECOND = ("ACKNOWLEDGE_WITHIN_SECONDS", "CANCEL_DEADLINE_SECONDS", "HEARTBEAT_INTERVAL_SECONDS")


@register()
def timings(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if 3 * settings.HEARTBEAT_INTERVAL_SECONDS >= settings.LEASE_TTL_SECONDS:
        found.append(
            Error(
                "A lease must outlive two lost heartbeats.",
                hint="Set LEASE_TTL_SECONDS to more than 3 times HEARTBEAT_INTERVAL_SECONDS.",
                id="leases.E001",
            )
        )
    short = [name for name in AT_LEAST_A_SECOND if getattr(settings, name) < 1]
    return found + [Error(f"{name} must be at least 1.", id="leases.E002") for name in short]
