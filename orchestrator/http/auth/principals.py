"""Principals: a program of an organization, a person with a browser, or a worker, with what each may see and do."""

from dataclasses import dataclass
from typing import Any

from orchestrator.http.api.calls import AuthenticatedRequest
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, Membership
from runtime_jobs.models.tenants import Scope
from workers.models import Worker

# What concerns every tenant: pools, and a job type wherever it comes from. No token has it.
INSTALLATION = "installation"
# What staff may do in a browser's session, by their permissions: those of the admin's buttons.
OF_STAFF: dict[str, frozenset[str]] = {
    "runtime_jobs.operate_job": frozenset({Scope.JOBS_WRITE, Scope.ORCH_OPERATE}),
    "runtime_jobs.change_organization": frozenset({Scope.ORCH_QUOTA}),
    "runtime_jobs.change_secret": frozenset({Scope.SECRETS_WRITE}),
    "workers.change_pool": frozenset({INSTALLATION}),
}


@dataclass(frozen=True)
class ClientPrincipal:
    """A program or a person. `organizations` is None for staff, who see every tenant."""

    key: str  # stable name of the principal, for idempotency keys
    actor: Actor
    organizations: tuple[str, ...] | None
    scopes: frozenset[str]

    is_authenticated = True
    is_worker = False

    def sees(self, org_slug: str) -> bool:
        return self.organizations is None or org_slug in self.organizations

    @property
    def is_operator(self) -> bool:
        return self.organizations is None

    @property
    def is_person(self) -> bool:
        """Whether a browser's session identified the caller, not a token."""
        return self.key.startswith("user:")


@dataclass(frozen=True)
class WorkerPrincipal:
    """A worker, which may access its own leases only."""

    worker: Worker

    is_authenticated = True
    is_worker = True
    scopes: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return self.worker.worker_id


def client_of_token(token: ApiToken) -> ClientPrincipal:
    """Return the principal of an API token."""
    return ClientPrincipal(
        key=f"token:{token.pk}",
        actor=Actor("client", f"token {token.name}"),
        organizations=(token.organization.slug,),
        scopes=frozenset(token.scopes),
    )


def client_of_person(user: Any) -> ClientPrincipal:
    """Return the principal of a person.

    Members may read their organizations' jobs; staff see all, and operate where they have the permission.
    """
    if user.is_staff:
        granted = (scopes for permission, scopes in OF_STAFF.items() if user.has_perm(permission))
        scopes = frozenset({Scope.JOBS_READ, Scope.ORCH_READ}).union(*granted)
        return ClientPrincipal(f"user:{user.pk}", Actor("operator", user.get_username()), None, scopes)
    mine = Membership.objects.filter(user=user).values_list("organization__slug", flat=True)
    return ClientPrincipal(
        f"user:{user.pk}", Actor("client", user.get_username()), tuple(mine), frozenset({Scope.JOBS_READ})
    )


def client_of(request: AuthenticatedRequest) -> ClientPrincipal:
    """Return the caller of a view whose permission admits only clients."""
    caller: Any = request.user
    assert isinstance(caller, ClientPrincipal)  # noqa: S101 a view without its permission is a bug
    return caller


def worker_of(request: AuthenticatedRequest) -> Worker:
    """Return the caller of a view whose permission is `IsWorker`."""
    caller: Any = request.user
    assert isinstance(caller, WorkerPrincipal)  # noqa: S101 a view without its permission is a bug
    return caller.worker
