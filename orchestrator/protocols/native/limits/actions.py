"""Pause, resume and throttle, for the views of limits and of pools."""

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Limit
from leases.scheduling.limits import LimitTarget
from orchestrator.http.auth.callers import cause_of
from orchestrator.protocols.native.limits.wire import serialize_limit
from orchestrator.services import limits
from runtime_jobs.errors import NotFound


def pause(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Pause the target. Returns the limit."""
    limit = limits.pause(subject=target, until=validated["until"], cause=cause_of(request, validated["reason"]))
    return limit_response(limit)


def resume(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Remove the pause of the target."""
    limits.resume(subject=target, cause=cause_of(request, validated["reason"]))
    return Response(status=204)


def throttle(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Throttle the target, or remove its throttle if `per_hour` is None. Returns the limit, if there is one."""
    terms = {name: validated[name] for name in ("per_hour", "burst", "until")}
    return limit_response(limits.throttle(subject=target, **terms, cause=cause_of(request, validated["reason"])))


def limit_response(limit: Limit | None, *, status: int = 200, **headers: str) -> Response:
    """Return the current state of the limit with its ETag, or 204 for None.

    Raises:
        NotFound: Another request has removed the limit meanwhile.
    """
    if limit is None:
        return Response(status=204)
    counted = Limit.objects.counted().filter(pk=limit.pk).first()
    if counted is None:
        raise NotFound(f"The limit {limit.pk} was removed by another request.")
    body = serialize_limit(counted, timezone.now())
    return Response(body, status=status, headers={"ETag": f'"{counted.version}"'} | headers)
