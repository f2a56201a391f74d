"""Settings of the doors that make no sense together, told at the start and not at night."""

from ipaddress import ip_network
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def certificates(**_: Any) -> list[CheckMessage]:
    if bool(settings.CERTIFICATE_HEADER) != bool(settings.CERTIFICATE_PROXIES):
        hint = "Name the header and the proxies that may set it, or neither."
        return [Error("Half of the way in by client certificates is set.", hint=hint, id="orchestrator.E001")]
    return [
        Error(f"CERTIFICATE_PROXIES: {proxy!r} is no address or network.", id="orchestrator.E002")
        for proxy in settings.CERTIFICATE_PROXIES
        if not _is_network(proxy)
    ]


@register()
def hsts(**_: Any) -> list[CheckMessage]:
    """Browsers' preload lists take only domains whose header includes the subdomains."""
    if settings.SECURE_HSTS_PRELOAD and not settings.SECURE_HSTS_INCLUDE_SUBDOMAINS:
        hint = "Set HSTS_INCLUDE_SUBDOMAINS too, or neither."
        return [Error("HSTS_PRELOAD has no effect without HSTS_INCLUDE_SUBDOMAINS.", hint=hint, id="orchestrator.E003")]
    return []


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
