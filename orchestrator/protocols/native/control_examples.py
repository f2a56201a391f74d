"""What is sent and answered about limits, as OpenAPI shows it."""

from typing import Any

from drf_spectacular.utils import OpenApiExample

from orchestrator.protocols.native.examples import answered


def _sent(summary: str, value: Any) -> OpenApiExample:
    return OpenApiExample(summary, value, request_only=True)


_WHY = {"reason": "the registry is down"}
_SOURCE = {"source": {"kind": "project", "org_slug": "sandtrace", "key": "web"}}
_PAUSE: dict[str, Any] = {
    "limit_id": 17,
    "kind": "pause",
    "scope": "project",
    "org_slug": "sandtrace",
    "key": "web",
    "max_active": 0,
    "running": None,
    "per_hour": None,
    "burst": None,
    "next_start_at": "2026-03-17T21:00:00Z",
    "until": "2026-03-17T21:00:00Z",
    "waiting": True,
    "reason": "the registry is down",
    "set_by": {"kind": "client", "id": "token ci"},
    "set_at": "2026-03-17T20:00:00Z",
    "version": 1,
}
_RATE = {"max_active": None, "per_hour": 60, "burst": 5, "next_start_at": "2026-03-17T20:00:41Z"}
_LIMIT = _PAUSE | _RATE | {"kind": "rate", "scope": "organization", "key": "*", "until": None, "reason": "noisy"}

NEW_LIMIT = _sent(
    "at most 60 starts an hour, 5 at once",
    {"kind": "rate", "org_slug": "sandtrace", "per_hour": 60, "burst": 5, "reason": "noisy"},
)
CHANGE_LIMIT = _sent("another rate", {"per_hour": 120, "reason": "calmer"})
PAUSE = _sent("a project, for an hour", _SOURCE | _WHY | {"until": "2026-03-17T21:00:00Z"})
RESUME = _sent("again", _SOURCE | {"reason": "it is back"})
THROTTLE = _sent("ten an hour", _SOURCE | _WHY | {"per_hour": 10, "burst": 2})
PAUSE_POOL = _sent("for maintenance", {"reason": "new disks", "until": "2026-03-17T21:00:00Z"})
RESUME_POOL = _sent("again", {"reason": "the disks are in"})
THROTTLE_POOL = _sent("slowly at first", {"reason": "new disks", "per_hour": 100})
CHANGE_POOL = _sent("organizations by turns", {"policy": "fair", "reason": "one tenant fills it"})
RESET = _sent("it is mended", {"org_slug": "sandtrace", "job_type": "steps", "reason": "the image is back"})

LIMIT = answered("a rate that is used up", _LIMIT, "200", "201")
PAUSED = answered("a pause", _PAUSE)
THROTTLED = answered("a throttle", _PAUSE | _RATE | {"kind": "throttle", "until": None})
POOL_PAUSED = answered("a pause", _PAUSE | {"scope": "pool", "org_slug": None, "key": "shared-linux"})
_BREAKER: dict[str, Any] = {
    "org_slug": "sandtrace",
    "job_type": "steps",
    "state": "open",
    "opened_at": "2026-03-17T20:00:00Z",
    "next_probe_at": "2026-03-17T20:05:00Z",
}
BREAKER = answered("an open one", _BREAKER)
RESETTED = answered("closed again", _BREAKER | {"state": "closed", "opened_at": None, "next_probe_at": None})
INCIDENT = answered(
    "an open one",
    {
        "incident_id": "inc_01kkygkagq0jk17bx6y1w8c3df",
        "kind": "breaker",
        "org_slug": "sandtrace",
        "job_type": "steps",
        "summary": "67% of the last steps jobs of sandtrace failed.",
        "opened_at": "2026-03-17T20:00:00Z",
        "resolved_at": None,
        "resolved_by": None,
    },
)
