"""The order in which every call about a job verifies its token (contract 1.3), with the status of each step.

Steps 1 to 9 leave every row as it was. From step 10 on the token is used, whatever the body contains.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.db import OperationalError

from orchestrator.core import counters
from orchestrator.core.cause import Cause
from orchestrator.core.sealing import SealedValueError, derived_keys
from orchestrator.http.asgi.responses import overloaded
from orchestrator.job_tokens import verification
from orchestrator.job_tokens.claims import KEY_LABEL, JobToken, TokenPurpose, sign, verify
from orchestrator.protocols.shithub.jobs import effects, optimistic
from orchestrator.services import actions_runners, expiry
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import QuotaContended
from runtime_jobs.models import Job, WorkflowRun
from tests.db_snapshot import nothing_lost
from tests.factories import OPERATOR
from tests.orchestrator.protocols.shithub.conftest import error_of, used_tokens
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.world import actions_spec, make_repository, register, start_run

pytestmark = pytest.mark.django_db

CALLS = ["status", "logs", "cancel-check", "steps/{step}/status"]
BODIES = {
    "status": {"status": "running"},
    "logs": {"seq": 0, "chunk": "aGVsbG8K"},
    "cancel-check": {},
    "steps/{step}/status": {"status": "running"},
}


def call(claimed: ClaimedJobClient, path: str, *, token: str | None = None, job: object = None, body: object = None):
    """One of `CALLS`, with a good body."""
    sent = BODIES[path] if body is None else body
    full = f"/api/v1/jobs/{job or claimed.job['id']}/{path.format(step=claimed.steps[0]['id'])}"
    return claimed.runner.post(full, sent, token=claimed.token if token is None else token)


def changed(claimed: ClaimedJobClient, **claims: object) -> str:
    """The runner's token with other claims, signed by this server."""
    return sign(replace(verify(claimed.token), **claims))


def read_at(monkeypatch: pytest.MonkeyPatch, before_expiry: timedelta) -> None:
    """Let the database's clock show a time before the expiry of each token, in the steady case and in the other."""
    read, read_more = verification.read_facts, verification.read_more_facts

    def shifted(token: JobToken, facts: verification.TokenFacts) -> verification.TokenFacts:
        return replace(facts, now=token.expires_at - before_expiry)

    def read_shifted(token: JobToken) -> verification.TokenFacts:
        return shifted(token, read(token))

    def read_more_shifted(token: JobToken, more: verification.MoreFacts) -> tuple[verification.TokenFacts, tuple]:
        facts, row = read_more(token, more)
        return shifted(token, facts), row

    for module in ("calls", "optimistic"):
        monkeypatch.setattr(f"orchestrator.protocols.shithub.jobs.{module}.read_facts", read_shifted)
    monkeypatch.setattr("orchestrator.protocols.shithub.jobs.optimistic.read_more_facts", read_more_shifted)


@pytest.mark.parametrize("path", CALLS)
def test_step_1_without_a_usable_key_every_call_is_503(settings, claimed, path):
    settings.ACTIONS_ROOT_KEY = "short"
    with nothing_lost():
        error_of(call(claimed, path, job="x", token="wrong"), 503)


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("job", ["0", "-1", "x", "1.5", "\uff19", "9223372036854775808", "1" * 5000, "%20", "01x"])
def test_step_2_a_path_that_names_no_job_is_404_whatever_the_token_is(claimed, path, job):
    for token in (claimed.token, "wrong"):
        with nothing_lost():
            error_of(call(claimed, path, job=job, token=token), 404)


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("header", [None, "", "bearer {token}", "Basic {token}", "{token}", "Bearer{token}"])
def test_step_3_a_missing_or_other_scheme_is_401_and_not_counted(claimed, counted, path, header):
    counted.clear()
    headers = {} if header is None else {"Authorization": header.format(token=claimed.token)}
    full = f"{claimed.path}/{path.format(step=1)}"
    with nothing_lost():
        response = claimed.runner.http.generic("POST", full, b"{}", content_type="application/json", headers=headers)
    error_of(response, 401)
    assert "WWW-Authenticate" not in response
    assert counted == []


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
REFUSED: dict[str, tuple[Callable[[ClaimedJobClient], str], int]] = {
    "no token": (lambda _: "a.b.c", 401),
    "algorithm none": (
        lambda claimed: jwt.PyJWS().encode(payload(claimed), "", algorithm="none"),
        401,
    ),
    "algorithm RS256": (
        lambda claimed: jwt.PyJWS().encode(payload(claimed), RSA_KEY, algorithm="RS256"),
        401,
    ),
    "other algorithm": (
        lambda claimed: jwt.PyJWS().encode(payload(claimed), derived_keys(KEY_LABEL)[0] * 2, algorithm="HS512"),
        401,
    ),
    "other header": (
        lambda claimed: jwt.PyJWS().encode(
            payload(claimed), derived_keys(KEY_LABEL)[0], algorithm="HS256", headers={"kid": "1"}
        ),
        401,
    ),
    "foreign key": (lambda claimed: jwt.PyJWS().encode(payload(claimed), b"k" * 32, algorithm="HS256"), 401),
    "100 KiB": (lambda claimed: claimed.token + "A" * 102_400, 401),
    "expired": (lambda claimed: changed(claimed, expires_at=database_now() - timedelta(seconds=1)), 401),
    "checkout": (lambda claimed: claimed.job["checkout_token"], 401),
    "unknown purpose": (
        lambda claimed: jwt.PyJWS().encode(
            json.dumps(json.loads(payload(claimed)) | {"purpose": "git"}).encode(),
            derived_keys(KEY_LABEL)[0],
            algorithm="HS256",
        ),
        401,
    ),
    "other job": (lambda claimed: changed(claimed, job_id=claimed.job["id"] + 1), 404),
    "unknown runner": (lambda claimed: changed(claimed, runner_id=2**40), 401),
    "other run": (lambda claimed: changed(claimed, run_id=claimed.job["run_id"] + 1), 404),
    "later lease": (lambda claimed: changed(claimed, fence=2), 404),
    "ended chain": (lambda claimed: changed(claimed, chain=1), 401),
}


def payload(claimed: ClaimedJobClient) -> bytes:
    _, body, _ = claimed.token.split(".")
    import base64  # noqa: PLC0415

    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("name", REFUSED)
def test_steps_4_to_9_refuse_a_token_and_change_no_row(claimed, counted, path, name):
    make, status = REFUSED[name]
    token = make(claimed)
    counted.clear()
    with nothing_lost():
        error_of(call(claimed, path, token=token), status)
    assert counted == ([counters.JWT_REJECTED] if status == 401 else [])
    assert call(claimed, path).status_code < 300, "the runner's own token was not used by that"


@pytest.mark.parametrize("path", CALLS)
def test_step_4_a_token_is_refused_at_its_expiry_exactly(monkeypatch, claimed, path):
    read_at(monkeypatch, timedelta(0))
    with nothing_lost():
        error_of(call(claimed, path), 401)


def test_a_token_counts_until_the_last_microsecond(monkeypatch, claimed):
    from leases.models import Lease  # noqa: PLC0415

    Lease.objects.update(expires_at=database_now() + timedelta(days=1))  # the lease is another matter
    read_at(monkeypatch, timedelta(microseconds=1))
    assert call(claimed, "cancel-check").status_code == 200


def test_a_bad_signature_is_refused_before_any_query(claimed, django_assert_num_queries):
    with django_assert_num_queries(0):
        error_of(call(claimed, "logs", token=claimed.token + "A" * 102_400), 401)
        error_of(call(claimed, "logs", token=REFUSED["foreign key"][0](claimed)), 401)


@pytest.mark.parametrize("path", CALLS)
def test_step_6_a_token_of_another_job_of_the_same_runner_is_404(runner, path):
    start_run(specs=[actions_spec(), actions_spec(job_key="other")])
    first, second = runner.client.claim(capacity=2), runner.client.claim(capacity=2)
    with nothing_lost():
        error_of(call(first, path, token=second.token), 404)


@pytest.mark.parametrize("path", CALLS)
def test_step_7_a_revoked_runner_is_401(claimed, path):
    actions_runners.revoke_runner(name="runner-1", cause=Cause(OPERATOR))
    with nothing_lost():
        error_of(call(claimed, path), 401)


@pytest.mark.parametrize("path", CALLS)
def test_step_8_a_job_that_retention_has_deleted_is_404(claimed, path):
    token = changed(claimed, job_id=10**9)
    with nothing_lost():
        error_of(call(claimed, path, token=token, job=10**9), 404)


@pytest.mark.parametrize("path", CALLS)
def test_step_8_a_job_of_another_type_is_404(claimed, path):
    from tests.factories import submitted_steps  # noqa: PLC0415

    other = submitted_steps()
    with nothing_lost():
        error_of(call(claimed, path, token=changed(claimed, job_id=other.pk), job=other.pk), 404)


@pytest.mark.parametrize("path", CALLS)
def test_step_9_the_run_of_another_job_is_404(claimed, path):
    other = start_run(make_repository(owner="bob"))
    with nothing_lost():
        error_of(call(claimed, path, token=changed(claimed, run_id=other.run.pk)), 404)


@pytest.mark.parametrize("path", CALLS)
def test_step_9_another_runner_is_404(claimed, path):
    other = register("runner-2")
    with nothing_lost():
        error_of(call(claimed, path, token=changed(claimed, runner_id=other.row.pk)), 404)


@pytest.mark.parametrize("path", CALLS)
def test_step_9_a_lost_lease_is_404_and_an_earlier_one_after_a_new_claim(runner, run, path):
    lost = runner.client.claim()
    later = database_now() + timedelta(seconds=61)
    expiry.expire(job_ulid=run.job.job_ulid, now=later)
    with nothing_lost():
        error_of(call(lost, path), 404)
    found = runner.client.claim()
    assert found.run().status_code == 200
    with nothing_lost():
        error_of(call(lost, path), 404)
    assert call(found, path).status_code < 300


@pytest.mark.parametrize("path", CALLS)
def test_step_9_a_lease_that_has_expired_unnoticed_is_404(claimed, path):
    from leases.models import Lease  # noqa: PLC0415

    Lease.objects.update(expires_at=database_now())
    with nothing_lost():
        error_of(call(claimed, path), 404)


def test_the_repository_claim_is_not_compared_on_job_calls(claimed):
    assert call(claimed, "cancel-check", token=changed(claimed, repository_id=10**9, jti="r" * 43)).status_code == 200


@pytest.mark.parametrize("path", CALLS)
def test_step_10_a_used_token_is_401_for_ever(claimed, counted, path):
    first = claimed.token
    assert call(claimed, path).status_code < 300
    used = used_tokens()
    counted.clear()
    for _ in range(2):
        with nothing_lost():
            error_of(call(claimed, path, token=first), 401)
    assert counted == [counters.JWT_REPLAY] * 2
    assert used_tokens() == used


BAD = {
    "status": [b"", b"{", b"[]", {"status": "queued"}, {"status": "running", "conclusion": "success"}],
    "logs": [b"", b"[]", {"seq": -1, "chunk": "YQ=="}, {"seq": 0, "chunk": "*"}, {"seq": 0, "chunk": "YQ==", "x": 1}],
    "steps/{step}/status": [b"", b"1", {"status": "queued"}, {"status": "completed"}],
}


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in BAD.items() for body in bodies], ids=str)
def test_step_11_a_bad_body_is_400_and_has_used_the_token(claimed, path, body):
    first, used = claimed.token, used_tokens()
    response = call(claimed, path, body=body)
    assert "next_token" not in error_of(response, 400)
    assert used_tokens() == used + 1
    error_of(call(claimed, path, token=first), 401)


SERVER_ERRORS = {
    "a bug": (RuntimeError("a bug"), 500),
    "overloaded": (overloaded("Too many."), 503),
    "contended": (QuotaContended("Repeat the request.", retry_after=1), 503),
    "database": (OperationalError("the connection is closed"), 503),
    "sealed": (SealedValueError("altered"), 500),
}


@pytest.mark.parametrize("cause", SERVER_ERRORS)
@pytest.mark.parametrize("path", CALLS)
def test_an_error_of_the_server_does_not_use_the_token(monkeypatch, claimed, path, cause):
    error, status = SERVER_ERRORS[cause]

    def fail(*_args, **_options):
        raise error

    name = {
        "status": "report_job",
        "logs": "masks_of",
        "cancel-check": "CallAnswer",
        "steps/{step}/status": "lock_step",
    }
    with monkeypatch.context() as patch, nothing_lost():
        patch.setattr(effects, name[path], fail)
        patch.setattr(optimistic, "store_call", fail)  # the statement of a call without a transaction
        error_of(call(claimed, path), status)
    assert call(claimed, path).status_code < 300


def test_a_refused_effect_keeps_the_token_used_and_nothing_else(claimed):
    """The lease was renewed less than a second ago, so that the token's row is the only difference."""
    used = used_tokens()
    job = Job.objects.values().get(pk=claimed.job["id"])
    steps = list(Job.objects.get(pk=claimed.job["id"]).steps.values())
    error_of(call(claimed, "steps/{step}/status", body={"status": "completed"}), 400)
    assert used_tokens() == used + 1
    assert Job.objects.values().get(pk=claimed.job["id"]) == job
    assert list(Job.objects.get(pk=claimed.job["id"]).steps.values()) == steps


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_405_without_credentials(claimed, path, method):
    full = f"{claimed.path}/{path.format(step=1)}"
    response = claimed.runner.http.generic(method, full)
    assert response.status_code == 405
    assert response["Allow"] == "POST"


@pytest.mark.parametrize("path", [*CALLS, "cancel", "token"])
def test_a_slash_at_the_end_is_404_and_no_redirect(claimed, path):
    full = f"{claimed.path}/{path.format(step=1)}/"
    error_of(claimed.runner.post(full, token=claimed.token), 404)


def test_every_claim_of_a_token_is_compared(claimed):
    """A claim that is added must be in the table above."""
    assert set(vars(verify(claimed.token))) == {
        *("runner_id", "job_id", "run_id", "repository_id", "fence", "chain", "expires_at", "jti", "purpose")
    }
    assert verify(claimed.token).purpose == TokenPurpose.API
    assert WorkflowRun.objects.count() == 1


@pytest.mark.parametrize("path", CALLS)
def test_the_longest_time_limit_with_its_grace_is_no_error(claimed, path):
    """Together they exceed an integer of 32 bits."""
    Job.objects.update(timeout_seconds=2**31 - 1)
    assert call(claimed, path).status_code < 300
