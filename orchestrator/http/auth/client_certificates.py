"""Authenticates workers by client certificates.

TLS ends at the operator's proxy. The proxy checks the certificate and sends its subject in a header. The header counts
only from that proxy, and only if the settings name both.
"""

from ipaddress import ip_address, ip_network

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from orchestrator.core.principals import WorkerPrincipal
from orchestrator.http.auth.authentication import touch_last_seen
from workers.models import Worker
from workers.registry.models import WorkerState


class ProxyClientCertAuth(BaseAuthentication):
    """Authenticates the worker whose `certificate_subject` equals the subject that the proxy sent."""

    def authenticate(self, request: Request) -> tuple[WorkerPrincipal, None] | None:
        subject = _subject(request)
        if not subject:
            return None
        found = Worker.objects.select_related("pool").filter(certificate_subject=subject)
        worker = found.exclude(state=WorkerState.REVOKED).first()
        if worker is None:
            raise AuthenticationFailed("No active worker has the subject of this client certificate.")
        touch_last_seen(worker)
        return WorkerPrincipal(worker), None


def _subject(request: Request) -> str:
    """Return the subject that the proxy sent, else an empty string. A header from elsewhere is ignored."""
    if not settings.CERTIFICATE_HEADER or not _is_from_proxy(request):
        return ""
    subject: str = request.headers.get(settings.CERTIFICATE_HEADER, "")
    return "" if "\0" in subject else subject


def _is_from_proxy(request: Request) -> bool:
    """Return whether the connection comes from a trusted proxy. Forwarded addresses are ignored."""
    try:
        peer = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    return any(peer in ip_network(trusted) for trusted in settings.CERTIFICATE_PROXIES)
