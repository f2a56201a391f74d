"""Principals: a program of an organization, a person with a browser, or a worker, with what each may see and do."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, MemberRole, Membership
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
_VIEWER = frozenset({Scope.JOBS_READ, Scope.ORCH_READ})
_OPERATOR = _VIEWER | {Scope.ORCH_OPERATE}
# What a member may do in a browser's session, by the role in the organization. See ADR 80.
OF_ROLE: dict[str, frozenset[str]] = {
    MemberRole.VIEWER: _VIEWER,
    MemberRole.OPERATOR: _OPERATOR,
    MemberRole.QUOTA_MANAGER: _OPERATOR | {Scope.ORCH_QUOTA},
}


@dataclass(frozen=True)
class ClientPrincipal:
    """A program or a person.

    Attributes:
        key: The stable name of the principal, for idempotency keys.
        actor: The name in the event history.
        organizations: The slugs of the organizations that the caller sees. None for staff, who see every tenant.
        scopes: The scopes that the caller has in at least one of the organizations.
        scopes_by_organization: The scopes of a member with different roles. None: `scopes` hold everywhere.
    """

    key: str
    actor: Actor
    organizations: tuple[str, ...] | None
    scopes: frozenset[str]
    scopes_by_organization: Mapping[str, frozenset[str]] | None = None

    is_authenticated = True
    is_worker = False

    def sees(self, org_slug: str) -> bool:
        return self.organizations is None or org_slug in self.organizations

    def limited_to(self, scope: str) -> "ClientPrincipal":
        """Return this caller with only those of its organizations in which it has the scope."""
        if self.scopes_by_organization is None:
            return self
        scopes_of = self.scopes_by_organization.items()
        permitted = tuple(slug for slug, scopes in scopes_of if scope in scopes and self.sees(slug))
        return replace(self, organizations=permitted)

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

    Members may do in each organization what their role allows; staff see all, and operate where they have the
    permission.
    """
    if user.is_staff:
        granted = (scopes for permission, scopes in OF_STAFF.items() if user.has_perm(permission))
        scopes = frozenset({Scope.JOBS_READ, Scope.ORCH_READ}).union(*granted)
        return ClientPrincipal(f"user:{user.pk}", Actor("operator", user.get_username()), None, scopes)
    roles = Membership.objects.filter(user=user).values_list("organization__slug", "role")
    granted_in = {slug: OF_ROLE[role] for slug, role in roles}
    return ClientPrincipal(
        f"user:{user.pk}",
        Actor("client", user.get_username()),
        tuple(granted_in),
        _VIEWER.union(*granted_in.values()),
        granted_in,
    )


def actor_of(worker: Worker) -> Actor:
    """Return the actor that represents a worker."""
    return Actor("worker", worker.worker_id)
