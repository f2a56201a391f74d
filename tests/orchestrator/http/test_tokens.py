"""Authentication by tokens: unchanged, not revoked, in the one place for a token. Other callers learn nothing."""

import logging
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.exceptions import AuthenticationFailed, Throttled

from orchestrator.core.cause import Cause
from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.auth.authentication import authenticate_bearers, refusals
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.http.client_ip import client_address, rate_limit_key
from orchestrator.services import worker_state
from runtime_jobs.models import ApiToken, Membership
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, problem_of, refused
from tests.factories import OPERATOR, SUBMIT_BODY, WorkerFactory, api_token, claimed, submitted
from workers.registry.models import WorkerState
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"
LEASES = "/v1/runtime/leases"


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    """Each test starts without anybody's refused tokens."""
    fresh = FailedAuthThrottle(clock=lambda: 30.0)  # no window ends within a test
    for name in ("wait", "count", "accept"):
        monkeypatch.setattr(refusals, name, getattr(fresh, name))


def headers_like(token):
    """Headers that are almost `Authorization: Bearer <token>`."""
    return {
        "nothing": None,
        "empty": "",
        "only the scheme": "Bearer",
        "only the scheme and a blank": "Bearer ",
        "another scheme": f"Basic {token}",
        "no scheme": token,
        "two blanks": f"Bearer  {token}",
        "a tab": f"Bearer\t{token}",
        "a blank behind": f"Bearer {token} ",
        "a line end behind": f"Bearer {token}\n",
        "NUL behind": f"Bearer {token}\0",
        "too short": f"Bearer {token[:-1]}",
        "too long": f"Bearer {token}x",
        "very long": f"Bearer {token}{'x' * 100_000}",
        "upper case": f"Bearer {token.upper()}",
        "another prefix": f"Bearer {token.replace('rto_api_', 'rto_worker_')}",
        "no prefix": f"Bearer {token.removeprefix('rto_api_')}",
        "its digest": f"Bearer {digest_of(token)}",
        "a list": f"Bearer {token}, Bearer {token}",
        "a list without blanks": f"Bearer {token},Bearer {token}",
        "two tokens": f"Bearer {token} {token}",
        "parameters": f'Bearer {token}, realm="x"',
        "full-width digits": f"Bearer {token[:-1]}１",  # noqa: RUF001 that is the attack
        "quoted": f'Bearer "{token}"',
    }


@pytest.mark.parametrize("name", headers_like("rto_api_" + "x" * 43))
def test_only_the_token_itself_opens(organization, name):
    sent = headers_like(api_token(organization))[name]
    caller = Caller()
    caller.headers = {} if sent is None else {"Authorization": sent}
    document = refused(lambda: caller.get(JOBS), 401, "unauthenticated")
    assert document["detail"] == "A valid token is needed."


def test_the_scheme_is_not_case_sensitive(organization):
    caller = Caller()
    caller.headers = {"Authorization": f"bearer {api_token(organization)}"}
    assert caller.get(JOBS).status_code == 200


def test_expired_revoked_and_unknown_look_alike_and_ask_for_a_token(organization):
    expired, revoked = api_token(organization), api_token(organization)
    ApiToken.objects.filter(digest=digest_of(expired)).update(expires_at=timezone.now())
    ApiToken.objects.filter(digest=digest_of(revoked)).update(revoked_at=timezone.now())
    answers = [Caller(token).get(JOBS) for token in (expired, revoked, "rto_api_" + "x" * 43)]
    assert len({str(problem_of(answer) | {"request_id": ""}) for answer in answers}) == 1
    assert {answer["WWW-Authenticate"] for answer in answers} == {'Bearer realm="runtime-orchestrator"'}


def test_a_token_lives_until_its_expiry(organization):
    token = api_token(organization)
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(minutes=1))
    assert Caller(token).get(JOBS).status_code == 200


def test_a_revoked_worker_is_a_stranger(worker, wendy, organization):
    submitted(organization.projects.get())
    lease = claimed(worker).lease
    worker_state.set_worker_state(worker_id=worker.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    for path in (LEASES, f"{LEASES}/{lease.lease_ulid}/heartbeat"):
        refused(lambda path=path: wendy.post(path), 401, "unauthenticated")


def test_a_rotated_worker_token_opens_no_more(worker, wendy):
    new = worker_state.rotate_worker_token(worker_id=worker.worker_id, cause=Cause(OPERATOR))
    refused(lambda: wendy.post(LEASES, {"worker_id": worker.worker_id}), 401, "unauthenticated")
    assert Caller(new).post(LEASES, {"worker_id": worker.worker_id}).status_code == 204


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "x", "", "status"])
@pytest.mark.parametrize("path", [JOBS, "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3df", "/healthz", "/nowhere"])
def test_a_token_in_an_address_is_refused_and_not_written_down(organization, caplog, name, path):
    token = api_token(organization)
    with caplog.at_level(logging.DEBUG):
        for caller in (Caller(), Caller(token)):
            refused(lambda caller=caller: caller.get(f"{path}?{name}={token}"), 400, "invalid_query")
            refused(lambda caller=caller: caller.get(f"{path}?{name}=%72to_api_{token[8:]}"), 400, "invalid_query")
    assert token[8:] not in caplog.text


def test_two_hundred_bad_tokens_a_minute_are_enough(organization, settings):
    settings.BAD_TOKENS_PER_MINUTE = 5
    good, other = Caller(api_token(organization)), Caller(api_token(organization))
    assert good.get(JOBS).status_code == 200
    stranger = Caller("rto_api_" + "x" * 43)
    assert [stranger.get(JOBS).status_code for _ in range(7)] == [401] * 5 + [429] * 2
    response = stranger.get(JOBS)
    assert problem_of(response)["code"] == "rate_limited"
    assert 1 <= int(response["Retry-After"]) <= 60
    assert other.get(JOBS).status_code == 429, "it was not seen good before"
    assert good.get(JOBS).status_code == 200, "it was: somebody else's flood does not stop it"
    assert stranger.http.get(JOBS, headers=stranger.headers, REMOTE_ADDR="192.0.2.1").status_code == 401


def test_a_group_of_calls_tries_no_more_bad_tokens_than_calls_one_by_one(organization, settings):
    settings.BAD_TOKENS_PER_MINUTE = 3
    good = [f"Bearer {api_token(organization)}" for _ in range(9)]
    bad = [f"Bearer rto_api_{number:043d}" for number in range(7)]
    found = authenticate_bearers([(token, "here") for token in good[:7]])
    assert [type(one) for one in found] == [ClientPrincipal] * 7, "valid tokens are not limited"
    guesses = [(token, "here") for token in (*bad, good[7], good[0])]
    found = authenticate_bearers([*guesses, (good[8], "elsewhere")])
    assert [type(one) for one in found[:7]] == [AuthenticationFailed] * 3 + [Throttled] * 4
    assert [type(one) for one in found[7:]] == [Throttled, ClientPrincipal, ClientPrincipal]


def test_a_flood_is_counted_by_the_true_address(settings):
    settings.BAD_TOKENS_PER_MINUTE = 3
    stranger = Caller("rto_api_" + "x" * 43)
    result = [stranger.get(JOBS, **{"X-Forwarded-For": f"10.0.0.{n}"}).status_code for n in range(5)]
    assert result == [401] * 3 + [429] * 2


@pytest.mark.parametrize("written", ["192.0.2.1", "::ffff:192.0.2.1", "::FFFF:c000:201"])
def test_one_address_is_one_however_the_listener_writes_it(rf, written):
    request = rf.get("/", REMOTE_ADDR=written)
    assert client_address(request) == rate_limit_key(request) == "192.0.2.1"


def test_a_flood_ends_with_its_minute():
    now = 59.0
    counted = FailedAuthThrottle(clock=lambda: now)
    counted.accept("good")
    counted.count("here")
    assert counted.wait("here", "bad", limit=1) == 1.0
    assert counted.wait("here", "good", limit=1) is None
    now = 60.0
    assert counted.wait("here", "bad", limit=1) is None
    counted.count("here")
    assert counted.wait("here", "good", limit=1) is None, "good in the minute before"
    now = 180.0
    counted.count("here")
    assert counted.wait("here", "good", limit=1) == 60.0


def test_a_v6_neighbourhood_is_a_64(settings):
    settings.BAD_TOKENS_PER_MINUTE = 3
    stranger = Caller("rto_api_" + "x" * 43)
    result = [
        stranger.http.get(JOBS, headers=stranger.headers, REMOTE_ADDR=f"2001:db8::{n:x}").status_code for n in range(5)
    ]
    assert result == [401] * 3 + [429] * 2


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", JOBS, "jobs:read"),
        ("GET", f"{JOBS}/{{}}", "jobs:read"),
        ("GET", f"{JOBS}/{{}}/events", "jobs:read"),
        ("GET", f"{JOBS}/{{}}/logs", "jobs:read"),
        ("POST", JOBS, "jobs:write"),
        ("POST", f"{JOBS}/{{}}/cancel", "jobs:write"),
        ("POST", f"{JOBS}/{{}}/retry", "orch:operate"),
    ],
)
def test_a_scope_that_is_missing_is_named(organization, method, path, scope):
    job = submitted(organization.projects.get())
    without = Caller(api_token(organization, tuple(set(Scope.values) - {scope})))
    document = refused(lambda: without.call(method, path.format(job.job_ulid), SUBMIT_BODY), 403, "insufficient_scope")
    assert document["scope"] == scope
    only = Caller(api_token(organization, (scope,)))
    assert only.call(method, path.format(job.job_ulid), SUBMIT_BODY).status_code not in {401, 403}


def test_a_worker_is_no_client_and_a_client_no_worker(organization, alice, wendy, worker):
    job = submitted(organization.projects.get())
    for method, path in [
        ("GET", JOBS),
        ("POST", JOBS),
        ("GET", f"{JOBS}/{job.job_ulid}"),
        ("POST", f"{JOBS}/{job.job_ulid}/cancel"),
    ]:
        refused(lambda method=method, path=path: wendy.call(method, path, SUBMIT_BODY), 403, "wrong_principal")
    lease = claimed(worker).lease
    refused(lambda: alice.post(LEASES, {"worker_id": worker.worker_id}), 403, "wrong_principal")
    for action in ("heartbeat", "acknowledge", "release", "complete", "fail", "logs", "report", "acknowledge-cancel"):
        refused(lambda action=action: alice.post(f"{LEASES}/{lease.lease_ulid}/{action}"), 403, "wrong_principal")


def test_a_session_reads_and_writes_only_with_a_csrf_token(organization, django_user_model):
    member = django_user_model.objects.create_user("mia")
    Membership.objects.create(user=member, organization=organization)
    job = submitted(organization.projects.get())
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(member)
    assert browser.get(f"{JOBS}/{job.job_ulid}").status_code == 200
    refused(lambda: browser.post(f"{JOBS}/{job.job_ulid}/cancel"), 403, "forbidden")
    for lie in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        refused(lambda lie=lie: browser.get(f"{JOBS}/{job.job_ulid}/logs?follow=1", headers=lie), 403, "forbidden")
    assert (
        browser.get(JOBS, headers={"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}).status_code == 200
    )
    member.is_active = False
    member.save()
    refused(lambda: browser.get(JOBS), 401, "unauthenticated")


def test_a_good_bearer_token_needs_no_csrf_token_beside_a_cookie(organization, django_user_model):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(django_user_model.objects.create_user("mia"))
    token = {"Authorization": f"Bearer {api_token(organization)}"}
    assert browser.post(JOBS, SUBMIT_BODY, content_type="application/json", headers=token).status_code == 201


def test_a_token_of_the_wrong_kind_is_not_looked_up_by_its_digest(organization):
    worker = WorkerFactory()
    ApiToken.objects.create(organization=organization, name="x", digest=digest_of(worker.token), scopes=Scope.values)
    refused(lambda: Caller(worker.token).get(JOBS), 403, "wrong_principal")
