"""Workers by client certificates. TLS ends at the operator's proxy: it checks the certificate and names its subject in
a header, which counts only from that proxy, and only where settings name both."""

from ipaddress import ip_address, ip_network

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.http.auth.principals import WorkerPrincipal
from workers.models import Worker
from workers.registry.models import WorkerState


class ProxyClientCertAuth(BaseAuthentication):
    """The worker whose `certificate_subject` is, letter for letter, what the proxy says."""

    def authenticate(self, request: Request) -> tuple[WorkerPrincipal, None] | None:
        subject = _subject(request)
        if not subject:
            return None
        found = Worker.objects.select_related("pool").filter(certificate_subject=subject)
        worker = found.exclude(state=WorkerState.REVOKED).first()
        if worker is None:
            raise AuthenticationFailed("The certificate is nobody's.")
        touch_last_seen(worker)
        return WorkerPrincipal(worker), None


def _subject(request: Request) -> str:
    """Empty unless our proxy says it. A stranger's header is as if it were not there."""
    if not settings.CERTIFICATE_HEADER or not _is_from_proxy(request):
        return ""
    subject: str = request.headers.get(settings.CERTIFICATE_HEADER, "")
    return "" if "\0" in subject else subject


def _is_from_proxy(request: Request) -> bool:
    """By who holds the connection, never by what a header says of that."""
    try:
        peer = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    return any(peer in ip_network(trusted) for trusted in settings.CERTIFICATE_PROXIES)
