"""Authenticates runners by their keys, people by personal keys, and programs by the key of a project.

A runner's key is accepted only for the agent endpoints of its own path. No other credential is accepted there, and a
runner's key nowhere else. Contract 1.2 and 1.3 of the protocol fix statuses and texts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jwt
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from orchestrator.http.auth.authentication import CHALLENGE, refusals, touch_last_seen
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, runner_filter
from orchestrator.services.personal_keys import subject_of_jwt
from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, MemberRole, Membership, PersonalKey, Project
from workers.models import Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import PROJECT_PREFIX, USER_PREFIX, digest_of, has_runner_key_shape

T = TypeVar("T")

INVALID_HEADER: Final = "Missing or invalid Authorization header"
INVALID_KEY_FORMAT: Final = "Invalid runner key format"
INVALID_KEY: Final = "Invalid runner key"
LOG_IN_HINT: Final = "Authenticate with `Authorization: Bearer bencher_user_…` or the key of a project."

_IS_VALID = Q(revoked_at__isnull=True) & (Q(expires_at__isnull=True) | Q(expires_at__gt=ClockTimestamp()))


@dataclass(frozen=True)
class BencherCaller:
    """The caller of a REST endpoint: a person, the key of a project, or anonymous.

    Attributes:
        actor: The caller in the audit log.
        user: The person, or None.
        project: The project of the key, or None.
    """

    actor: Actor
    user: Any = None
    project: Project | None = None

    @property
    def is_authenticated(self) -> bool:
        """Whether a person or a project is known."""
        return self.user is not None or self.project is not None

    @property
    def is_server_admin(self) -> bool:
        """Whether the caller may change runners and specs: staff with the permission to change workers."""
        return self.user is not None and self.user.is_staff and self.user.has_perm("workers.change_worker")

    def can_see(self, project: Project) -> bool:
        """Return whether the caller may read a private project: its key, a member of its organization, or staff."""
        if self.project is not None:
            return self.project.pk == project.pk
        return self.user is not None and (self.user.is_staff or self._memberships(project).exists())

    def may_change(self, project: Project) -> bool:
        """Return whether the caller may submit runs to a project and change its resources.

        These are its key, the members of its organization except viewers, and staff with the permission that the native
        API asks for.
        """
        if self.project is not None:
            return self.project.pk == project.pk
        if self.user is None:
            return False
        if self.user.is_staff and self.user.has_perm("runtime_jobs.operate_job"):
            return True
        return self._memberships(project).exclude(role=MemberRole.VIEWER).exists()

    def _memberships(self, project: Project) -> QuerySet[Membership]:
        return Membership.objects.filter(user=self.user, organization=project.organization_id)


ANONYMOUS: Final = BencherCaller(Actor("client", "anonymous"))


def unauthenticated(message: str) -> ApiError:
    """Return the 401 with this message."""
    return ApiError(401, "unauthenticated", message, headers={"WWW-Authenticate": CHALLENGE})


def bearer_of(header: str | None) -> str | None:
    """Return the trimmed value of an `Authorization` header with the scheme Bearer, in any case; else None."""
    scheme, _, value = (header or "").partition(" ")
    return value.strip() or None if scheme.lower() == "bearer" else None


def authenticate_runner(header: str | None, runner_ref: str, *, network: str | None = None) -> Worker:
    """Return the runner that a request of an agent identifies, by one query.

    The response does not distinguish an unknown key from the key of another, an archived or a revoked runner. Nothing
    is cached: a key that was rotated is refused at once.

    Args:
        header: The value of `Authorization`, or None.
        runner_ref: The UUID or slug in the path.
        network: The client's network, by which refused keys are counted; None counts nothing.

    Raises:
        ApiError: 401; or 400, the path is neither UUID nor slug; or 429, the network has sent too many invalid keys.
    """
    resource_id = parse_resource_id(runner_ref, "runner")
    key = bearer_of(header)
    if key is None:
        raise unauthenticated(INVALID_HEADER)
    if not has_runner_key_shape(key):
        raise unauthenticated(INVALID_KEY_FORMAT)

    def find() -> Worker | None:
        rows = Worker.objects.runners().select_related("pool").exclude(state=WorkerState.REVOKED)
        found = rows.filter(digest=digest_of(key), archived_at__isnull=True, **runner_filter(resource_id))
        return found.first()

    worker = _throttled(key, network, find, INVALID_KEY)
    touch_last_seen(worker)
    return worker


class PersonAuthentication(BaseAuthentication):
    """Authenticates a person by `bencher_user_…` or a JSON Web Token. Without a valid header the status is 400."""

    def authenticate(self, request: Request) -> tuple[BencherCaller, None]:
        key = bearer_of(request.META.get("HTTP_AUTHORIZATION"))
        if key is None:
            raise bad_request(f"{INVALID_HEADER}: send `Authorization: Bearer` with a personal key or JSON Web Token.")
        return authenticate_person(key, network=rate_limit_key(request)), None


class OptionalCallerAuthentication(BaseAuthentication):
    """Authenticates a person or the key of a project; no header is anonymous, an invalid one 401."""

    def authenticate(self, request: Request) -> tuple[BencherCaller, None]:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return ANONYMOUS, None
        key = bearer_of(header)
        if key is None:
            raise unauthenticated(INVALID_HEADER)
        network = rate_limit_key(request)
        if key.startswith(PROJECT_PREFIX):
            return authenticate_project(key, network=network), None
        try:
            return authenticate_person(key, network=network), None
        except ApiError as error:
            raise unauthenticated(error.detail) if error.status == 400 else error from None


def authenticate_person(key: str, *, network: str | None = None) -> BencherCaller:
    """Return the person whom a personal key or a JSON Web Token identifies.

    Args:
        key: The value after `Bearer`.
        network: The client's network, by which refused keys are counted; None counts nothing.

    Raises:
        ApiError: 400, a token that is malformed, expired or not of this server; 401, an unknown or revoked key;
            403, a locked account; 404, the token's user does not exist; 429, too many invalid keys.
    """
    if key.startswith(USER_PREFIX):
        row = _throttled(key, network, lambda: _personal_key(key), "The personal key is unknown, revoked or expired.")
        user = row.user
    else:
        user = _user_of_jwt(key)
        _throttled(key, network, lambda: _personal_key(key), "The JSON Web Token was revoked.")
    if not user.is_active:
        raise ApiError(403, "forbidden", "The account of this key is locked. Ask an operator.")
    return BencherCaller(Actor("operator" if user.is_staff else "client", user.get_username()), user=user)


def authenticate_project(key: str, *, network: str | None = None) -> BencherCaller:
    """Return the project that a project key identifies.

    Args:
        key: The value after `Bearer`, which begins with `bencher_run_`.
        network: The client's network, by which refused keys are counted; None counts nothing.

    Raises:
        ApiError: 401, the key is unknown, revoked or expired; 429, too many invalid keys.
    """

    def find() -> ApiToken | None:
        rows = ApiToken.objects.select_related("project__organization").filter(_IS_VALID, digest=digest_of(key))
        return rows.filter(project__isnull=False).first()

    token = _throttled(key, network, find, "The project key is unknown, revoked or expired.")
    return BencherCaller(Actor("client", f"project key {token.name}"), project=token.project)


def _personal_key(key: str) -> PersonalKey | None:
    return PersonalKey.objects.select_related("user").filter(_IS_VALID, digest=digest_of(key)).first()


def _user_of_jwt(token: str) -> Any:
    try:
        subject = subject_of_jwt(token)
    except jwt.PyJWTError:
        raise bad_request("The JSON Web Token is malformed, expired or not signed by this server.") from None
    user = get_user_model().objects.filter(pk=subject).first() if subject.isdecimal() else None
    if user is None:
        raise ApiError(404, "not_found", "The user of this JSON Web Token does not exist.")
    return user


def _throttled(key: str, network: str | None, find: Callable[[], T | None], refusal: str) -> T:
    """Return what `find` returns, and count it as a refused credential of the network if that is None."""
    digest = digest_of(key)
    if (
        network is not None
        and (wait := refusals.wait(network, digest, limit=settings.BAD_TOKENS_PER_MINUTE)) is not None
    ):
        seconds = str(int(wait) + 1)
        detail = f"Too many invalid keys from this address. Try again in {seconds} seconds."
        raise ApiError(429, "rate_limited", detail, headers={"Retry-After": seconds})
    found = find()
    if found is None:
        if network is not None:
            refusals.count(network)
        raise unauthenticated(refusal)
    if network is not None:
        refusals.accept(digest)
    return found
