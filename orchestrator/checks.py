"""System checks: settings that contradict one another are reported at the start."""

from ipaddress import ip_network
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def certificates(**_: Any) -> list[CheckMessage]:
    """Report client certificates with a header and no proxies, or the reverse, and proxies that are no addresses."""
    if bool(settings.CERTIFICATE_HEADER) != bool(settings.CERTIFICATE_PROXIES):
        hint = "Name the header and the proxies that may set it, or neither."
        return [
            Error("Only one of CERTIFICATE_HEADER and CERTIFICATE_PROXIES is set.", hint=hint, id="orchestrator.E001")
        ]
    return [
        Error(f"CERTIFICATE_PROXIES: {proxy!r} is not an IP address or network.", id="orchestrator.E002")
        for proxy in settings.CERTIFICATE_PROXIES
        if not _is_network(proxy)
    ]


@register()
def scheduler_takeover(**_: Any) -> list[CheckMessage]:
    """Report a takeover so late that `/readyz` fails before it."""
    takeover, silent = settings.CLOCK_TAKEOVER_SECONDS, settings.CLOCK_SILENT_AFTER_SECONDS
    if 2 <= takeover < silent:
        return []
    text = f"CLOCK_TAKEOVER_SECONDS is {takeover:g}; it must be at least 2 and less than CLOCK_SILENT_AFTER_SECONDS."
    return [Error(text, hint=f"CLOCK_SILENT_AFTER_SECONDS is {silent:g}.", id="orchestrator.E003")]


@register()
def retention(**_: Any) -> list[CheckMessage]:
    """Report negative periods, and records of requests that are kept longer than the jobs that they name."""
    days = settings.RETENTION_DAYS
    wrong: list[CheckMessage] = [
        Error(f"RETENTION_{name.upper()}_DAYS is {number}; it must be 0 (keep) or more.", id="orchestrator.E004")
        for name, number in days.items()
        if number < 0
    ]
    wrong += [
        Error(
            f"RETENTION_{name.upper()}_DAYS is {days[name] or 'unlimited'}, but jobs are kept for {days['jobs']} days.",
            hint="A request that is repeated later would be answered with a job that was deleted.",
            id="orchestrator.E005",
        )
        for name in ("idempotency_keys", "webhook_deliveries")
        if days["jobs"] > 0 and not 0 < days[name] <= days["jobs"]
    ]
    return wrong


@register()
def hsts(**_: Any) -> list[CheckMessage]:
    """Report a preload without subdomains: the browsers' preload lists do not accept it."""
    if settings.SECURE_HSTS_PRELOAD and not settings.SECURE_HSTS_INCLUDE_SUBDOMAINS:
        hint = "Set HSTS_INCLUDE_SUBDOMAINS too, or neither."
        return [Error("HSTS_PRELOAD has no effect without HSTS_INCLUDE_SUBDOMAINS.", hint=hint, id="orchestrator.E006")]
    return []


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
