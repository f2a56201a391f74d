"""Rights of contract 1.5: checkout tokens while their job runs, API tokens with jobs:read, everybody if it is public."""

import base64
from datetime import timedelta

import pytest
from django.test import RequestFactory

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.claims import TokenPurpose
from orchestrator.protocols.git_http.access import authorize
from orchestrator.protocols.git_http.wire import GitRefusal
from orchestrator.repositories.mirrors import mirror_path
from orchestrator.services import worker_state
from runtime_jobs.db_time import database_now
from runtime_jobs.models import ApiToken
from tests.factories import OPERATOR, OrganizationFactory, WorkerFactory, api_token
from tests.orchestrator.protocols.git_http.world import basic, running_job
from tests.orchestrator.repositories.world import added, mirrored
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def private(origin):
    return mirrored(origin, is_private=True)


@pytest.fixture
def public(origin):
    return mirrored(origin, full_name="acme/open")


def refused(authorization: str | None, name: str = "acme/web", **extra) -> GitRefusal:
    with pytest.raises(GitRefusal) as raised:
        access(authorization, name, **extra)
    return raised.value


def access(authorization: str | None, name: str = "acme/web", **extra):
    headers = {} if authorization is None else {"authorization": authorization}
    request = RequestFactory().get(f"/{name}.git/info/refs", headers=headers, **extra)
    return authorize(request, *name.split("/"))


# --- without credentials ----------------------------------------------------------------------------------------------


def test_a_public_repository_needs_no_credentials(public):
    assert access(None, "acme/open").mirror == mirror_path(public)
    assert access(None, "ACME/Open").mirror == mirror_path(public)


@pytest.mark.parametrize("name", ["acme/web", "acme/none", "acme/..", "x y/web"])
def test_a_private_repository_is_indistinguishable_from_none(private, name):
    refusal = refused(None, name)
    assert (refusal.status, refusal.headers) == (401, {"WWW-Authenticate": 'Basic realm="shithub"'})
    assert refusal.message == refused(None, "acme/web").message


BAD_HEADERS = [
    "Basic !!!",
    "Basic",
    "Basic " + base64.b64encode(b"no-colon").decode(),
    "Basic " + base64.b64encode(b"user:").decode(),
    "Basic " + base64.b64encode(b"user:\xff").decode(),
    "Digest abc",
    "Bearer ",
    "",
    basic("x" * 5000),
    basic("x" * 100_000),
]


@pytest.mark.parametrize("header", BAD_HEADERS)
def test_a_malformed_header_is_401_before_any_query(public, header, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert refused(header, "acme/open").status == 401


# --- checkout tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["shithub-actions", "", "anyone"])
def test_a_checkout_token_reads_the_repository_of_its_run_with_any_user_name(private, user):
    running = running_job(private)
    found = access(basic(running.token(), user))
    assert (found.mirror, found.client) == (mirror_path(private), f"runner:{running.worker.pk}")
    assert access(basic(running.token(), user)) == found  # reusable


def test_a_checkout_token_reads_no_other_repository(private, public):
    token = basic(running_job(private).token())
    assert refused(token, "acme/open").status == 404
    assert refused(token, "acme/none").status == 404


def ended(running) -> None:
    worker_state.revoke(job_ulid=running.job.job_ulid, actor=OPERATOR, reason="test")


def expired_lease(running) -> None:
    Lease.objects.filter(pk=running.lease.pk).update(expires_at=database_now() - timedelta(seconds=1))


def revoked_runner(running) -> None:
    worker_state.set_worker_state(worker_id=running.worker.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))


@pytest.mark.parametrize("change", [ended, expired_lease, revoked_runner])
def test_a_checkout_token_ends_with_the_job_and_its_lease(private, change):
    running = running_job(private)
    token = basic(running.token())
    assert access(token)
    change(running)
    assert refused(token).status == 401


CLAIMS = [
    {"purpose": TokenPurpose.API},
    {"job_id": 999_999},
    {"run_id": 999_999},
    {"repository_id": 999_999},
    {"runner_id": 999_999},
    {"fence": 999},
    {"chain": 7},
]


@pytest.mark.parametrize("claims", CLAIMS, ids=lambda claims: next(iter(claims)))
def test_a_token_with_another_claim_is_refused(private, claims):
    running = running_job(private)
    purpose = claims.pop("purpose", TokenPurpose.CHECKOUT)
    token = running.token(purpose, **claims)
    claims["purpose"] = purpose
    assert refused(basic(token)).status == 401


def test_an_expired_and_an_altered_token_are_refused(private):
    running = running_job(private)
    assert refused(basic(running.token(age=timedelta(minutes=16)))).status == 401
    token = running.token()
    head, payload, signature = token.split(".")
    assert refused(basic(f"{head}.{payload}.{signature[::-1]}")).status == 401
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    assert refused(basic(f"{unsigned}.{payload}.{signature}")).status == 401


# --- API tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [basic, lambda token: f"Bearer {token}"])
def test_an_api_token_with_jobs_read_reads_the_repositories_of_its_organization(private, header):
    token = api_token(private.project.organization, ("jobs:read",))
    assert access(header(token)).mirror == mirror_path(private)


def test_an_api_token_of_another_tenant_finds_only_public_repositories(private, public):
    token = basic(api_token(OrganizationFactory()))
    assert refused(token).status == 404
    assert refused(token, "acme/none").status == 404
    assert access(token, "acme/open").mirror == mirror_path(public)


def test_an_api_token_without_the_scope_and_a_worker_are_forbidden(private):
    token = api_token(private.project.organization, ("jobs:write",))
    assert refused(basic(token)).status == 403
    assert refused(basic(WorkerFactory().token)).status == 403


def test_a_revoked_api_token_is_refused_also_for_a_public_repository(public, settings):
    settings.AUTH_CACHE_SECONDS = 0
    token = api_token(public.project.organization)
    ApiToken.objects.update(revoked_at=database_now())
    assert refused(basic(token), "acme/open").status == 401


def test_many_invalid_tokens_are_throttled(private, settings):
    settings.BAD_TOKENS_PER_MINUTE = 2
    tokens = [f"rto_api_{'x' * 42}{number}" for number in range(4)]
    statuses = [refused(basic(token), REMOTE_ADDR="192.0.2.77").status for token in tokens]
    assert statuses[0] == 401
    assert statuses[-1] == 429


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_repository_without_a_mirror_is_503_with_a_pause(origin):
    added(origin.path)
    refusal = refused(None)
    assert (refusal.status, "Retry-After" in refusal.headers) == (503, True)


def test_another_host_name_and_plain_http_are_refused_without_a_redirect(public, settings):
    assert refused(None, "acme/open", HTTP_HOST="evil.example").status == 400
    settings.SECURE_SSL_REDIRECT = True
    assert refused(None, "acme/open").status == 403
