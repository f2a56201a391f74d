"""Requests of these tests, their callers, and readers of their responses."""

from django.contrib.auth.models import Permission, User
from django.test import Client

from leases.models import Breaker, Limit
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.services import job_end
from runtime_jobs.events import Actor
from runtime_jobs.states import FailureReason
from tests.api_client import Caller
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    submitted,
)

ORG = "sandtrace"
CI = Actor("client", "token test")
WHY = {"reason": "test"}
RATE = {"kind": "rate", "org_slug": ORG, "per_hour": 60, "burst": 2, **WHY}
AT_ONCE = {"kind": "organization", "org_slug": ORG, "max_active": 3, **WHY}
EMERGENCY = AT_ONCE | {"kind": "emergency"}
OF_ORGANIZATION = {"kind": "organization", "org_slug": ORG}
OF_PROJECT = {"kind": "project", "org_slug": ORG, "key": "web"}
OF_TYPE = {"kind": "job_type", "org_slug": ORG, "key": "runtime"}
OF_EVERY_TYPE = {"kind": "job_type", "key": "runtime"}
OF_POOL = {"kind": "pool", "key": "shared-linux"}
MINE = [OF_ORGANIZATION, OF_PROJECT, OF_TYPE]
ALL = [*MINE, OF_EVERY_TYPE, OF_POOL]
ACTIONS = [("pause", {}), ("resume", {}), ("throttle", {"per_hour": 6})]


class Browser(Caller):
    """A person of the staff with these permissions, in a browser's session."""

    def __init__(self, name: str, *permissions: str) -> None:
        super().__init__()
        user = User.objects.create(username=name, is_staff=True)
        for app, codename in (permission.split(".") for permission in permissions):
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        self.http = Client(raise_request_exception=False)
        self.http.force_login(user)


def with_scopes(organization, *scopes: str) -> Caller:
    return Caller(api_token(organization, scopes))


def ok(response, status=200):
    assert response.status_code == status, response.content
    return response.json() if response.content else None


def path_of(limit) -> str:
    return f"/v1/limits/{limit.pk if isinstance(limit, Limit) else limit['limit_id']}"


def change(caller, limit, body, version=1):
    return caller.call("PATCH", path_of(limit), body | WHY, **{"If-Match": f'"{version}"'})


def lift(caller, limit, version=1):
    return caller.call("DELETE", f"{path_of(limit)}?reason=calm", **{"If-Match": f'"{version}"'})


def by_operator(**terms) -> Limit:
    return limited(ORG, max_active=5, cause=Cause(OPERATOR, "night"), **terms)


def broken(org_slug: str) -> Breaker:
    """The breaker of an organization whose runtime jobs all fail."""
    worker = WorkerFactory()
    project = ProjectFactory(organization=OrganizationFactory(slug=org_slug))
    for _ in range(12):
        submitted(project)
        taken = claimed(worker)
        job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
    found = breakers.evaluate_breaker(org_slug=org_slug, job_type="runtime")
    assert found.state == "open"
    return found
