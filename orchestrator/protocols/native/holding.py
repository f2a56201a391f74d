"""Pause, resume and throttle, whatever the address that they come in by."""

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Limit
from leases.scheduling.limits import LimitTarget
from orchestrator import services
from orchestrator.http.auth.principals import client_of
from orchestrator.http.client_ip import client_address
from orchestrator.protocols.native import control_wire
from runtime_jobs.errors import NotFound


def operator_kwargs(request: Request, reason: str) -> dict[str, Any]:
    """Who, why and from where, as the verbs of operators take it."""
    return {"actor": client_of(request).actor, "reason": reason, "source_address": client_address(request)}


def pause(request: Request, subject: LimitTarget, sent: dict[str, Any]) -> Response:
    return shown(services.pause(subject=subject, until=sent["until"], **operator_kwargs(request, sent["reason"])))


def resume(request: Request, subject: LimitTarget, sent: dict[str, Any]) -> Response:
    services.resume(subject=subject, **operator_kwargs(request, sent["reason"]))
    return Response(status=204)


def throttle(request: Request, subject: LimitTarget, sent: dict[str, Any]) -> Response:
    terms = {name: sent[name] for name in ("per_hour", "burst", "until")}
    return shown(services.throttle(subject=subject, **terms, **operator_kwargs(request, sent["reason"])))


def shown(limit: Limit | None, *, status: int = 200, **headers: str) -> Response:
    """The limit as it is now, with its version; nothing for one that was lifted."""
    if limit is None:
        return Response(status=204)
    row = Limit.objects.counted().filter(pk=limit.pk).first()
    if row is None:
        raise NotFound("It was lifted meanwhile.")
    told = control_wire.limit(row, timezone.now())
    return Response(told, status=status, headers={"ETag": f'"{row.version}"'} | headers)
