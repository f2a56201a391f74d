"""Set and remove limits, for the views of limits and of pools."""

from dataclasses import fields
from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Limit, LimitKind
from leases.scheduling.limits import LimitTarget
from orchestrator.http.auth.callers import cause_of
from orchestrator.limits import job_limits
from orchestrator.limits.job_limits import LimitTerms
from orchestrator.protocols.native.limits.wire import serialize_limit
from runtime_jobs.errors import NotFound

TERMS = [field.name for field in fields(LimitTerms)]


def set_limit(
    request: Request, kind: LimitKind, target: LimitTarget, validated: dict[str, Any], **conditions: Any
) -> Limit | None:
    """Set the limit to the terms of a request. Without a number of jobs or starts it is removed.

    Args:
        validated: `reason`, and those of the terms that the request names.
        **conditions: `if_versions` and `idempotency`.
    """
    terms = LimitTerms(**{name: validated[name] for name in TERMS if name in validated})
    return job_limits.set_limit(kind, target, terms, cause=cause_of(request, validated["reason"]), **conditions)


def pause(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Pause the target. Returns the limit."""
    return limit_response(set_limit(request, LimitKind.PAUSE, target, validated | {"max_active": 0}))


def resume(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Remove the pause of the target."""
    return limit_response(set_limit(request, LimitKind.PAUSE, target, validated))


def throttle(request: Request, target: LimitTarget, validated: dict[str, Any]) -> Response:
    """Throttle the target, or remove its throttle if `per_hour` is None. Returns the limit, if there is one."""
    return limit_response(set_limit(request, LimitKind.THROTTLE, target, validated))


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
