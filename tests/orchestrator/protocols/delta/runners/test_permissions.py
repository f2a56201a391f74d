"""Authentication of document 001's runners, and refusals in the documents' envelope."""

import psycopg
import pytest
from django.core.checks import run_checks
from django.db import connection
from django.test import Client

from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from runtime_jobs.models import Job
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import PoolFactory, WorkerFactory, api_token, submitted_steps
from tests.orchestrator.protocols.delta.messages import INTERNAL, PATHS, WORDS, Held, error_of, recorded
from workers.models import Pool, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import WORKER_PREFIX, new_token

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
NOBODY = Caller()
UNKNOWN = f"{WORKER_PREFIX}{'A' * 43}"  # of the form of a token; the same in every test process
SUBJECT = "CN=build-01,OU=Runners,O=Acme"
PROXY = "192.0.2.10"


class Behind(Caller):
    """A runner whose words come through a peer, with what that says of its certificate."""

    def __init__(self, peer: str, subject: str | None = SUBJECT, header: str = "X-Client-Subject") -> None:
        super().__init__()
        self.http = Client(raise_request_exception=False, REMOTE_ADDR=peer)
        self.headers = {} if subject is None else {header: subject}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Forget the wrong tokens of other tests."""
    monkeypatch.setattr("orchestrator.http.auth.authentication.refusals", FailedAuthThrottle(clock=lambda: 30.0))


@pytest.fixture
def trusting():
    Pool.objects.update(trusts_lease_ids=True)


@pytest.fixture
def certified(settings, worker):
    settings.CERTIFICATE_HEADER, settings.CERTIFICATE_PROXIES = "X-Client-Subject", ["192.0.2.0/28", "2001:db8::1"]
    Worker.objects.filter(pk=worker.pk).update(certificate_subject=SUBJECT)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_without_a_token_nobody_is_heard(granted, word):
    with nothing_lost():
        error = error_of(granted.say(word, actor=NOBODY), 401, "UNAUTHORIZED")
    assert error["details"]["code"] == "unauthenticated"


def test_a_refused_runner_learns_how_to_authenticate(granted):
    assert granted.say("runner_heartbeat", actor=NOBODY)["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("header", ["Bearer nonsense", f"Bearer {UNKNOWN}", "Basic eDp5", ""])
def test_a_wrong_token_is_refused_also_where_a_lease_id_would_do(granted, trusting, word, header):
    caller = Caller()
    caller.headers = {"Authorization": header}
    with nothing_lost():
        error_of(granted.say(word, actor=caller), 401, "UNAUTHORIZED")


@pytest.mark.parametrize("word", WORDS)
def test_a_client_is_no_runner_not_even_of_its_own_job(project, granted, trusting, word):
    client = Caller(api_token(project.organization))
    with nothing_lost():
        error = error_of(granted.say(word, actor=client), 403, "FORBIDDEN")
        error_of(client.post(PATHS["LeaseRequest"], {"runner_id": "r"}), 403, "FORBIDDEN")
    assert error["details"]["code"] == "wrong_principal"


def test_a_browsers_session_opens_nothing(granted, trusting, admin_client):
    error_of(admin_client.post(PATHS["LeaseRequest"], {}, content_type="application/json"), 401, "UNAUTHORIZED")


# --- lease ids alone --------------------------------------------------------------------------------------------------


def test_where_a_pool_trusts_lease_ids_the_real_runner_needs_nothing_else(granted, trusting):
    for word in ("runner_ack_lease", "runner_heartbeat", "runner_complete_succeeded"):
        assert granted.say(word, actor=NOBODY).status_code == 200
    assert granted.job.state == "succeeded"
    granted.worker.refresh_from_db()
    assert granted.worker.last_seen_at is not None


@pytest.mark.parametrize("word", WORDS)
def test_a_pool_that_trusts_none_is_not_opened_by_one_that_does(granted, unknown, word):
    """And its leases look as if they were not there."""
    PoolFactory(slug="elsewhere", trusts_lease_ids=True)
    with nothing_lost():
        there, missing = granted.say(word, actor=NOBODY), granted.say(word, actor=NOBODY, lease_id=unknown)
    assert there.status_code == missing.status_code == 409
    assert there.content.decode() == missing.content.decode().replace(unknown, granted.lease.lease_ulid)


def test_a_revoked_workers_lease_ids_open_nothing(granted, trusting):
    Worker.objects.update(state=WorkerState.REVOKED)
    assert granted.say("runner_heartbeat", actor=NOBODY).json()["reason"] == "UNKNOWN_LEASE"


def test_a_lease_is_granted_to_no_stranger(project, granted, trusting):
    submitted_steps(project)
    with nothing_lost():
        error_of(NOBODY.post(PATHS["LeaseRequest"], {"runner_id": "r"}), 401, "UNAUTHORIZED")


# --- certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_opens_what_a_token_does(project, certified):
    submitted_steps(project)
    runner = Behind(PROXY)
    lease = runner.post(PATHS["LeaseRequest"], {"runner_id": "build-01"}).json()
    message = recorded("runner_ack_lease") | {"lease_id": lease["lease_id"], "job_id": lease["job_id"]}
    assert runner.post(PATHS["AckLease"], message).status_code == 200
    assert Worker.objects.get().last_seen_at is not None


@pytest.mark.parametrize(
    "caller",
    [
        Behind("192.0.2.16"),  # next to the network
        Behind("127.0.0.1"),
        Behind(""),
        Behind(PROXY, subject=None),
        Behind(PROXY, subject=""),
        Behind(PROXY, subject=SUBJECT.lower()),
        Behind(PROXY, subject=f"{SUBJECT}x"),
        Behind(PROXY, subject="CN=nobody"),
    ],
    ids=lambda caller: str(caller.headers),
)
def test_a_certificate_that_our_proxy_has_not_named_opens_nothing(granted, certified, caller):
    with nothing_lost():
        error_of(granted.say("runner_heartbeat", actor=caller), 401, "UNAUTHORIZED")


def test_what_a_stranger_says_of_the_peer_counts_nothing(granted, certified):
    liar = Behind("203.0.113.9")
    liar.headers |= {"X-Forwarded-For": PROXY, "X-Real-IP": PROXY, "Forwarded": f"for={PROXY}"}
    error_of(granted.say("runner_heartbeat", actor=liar), 401, "UNAUTHORIZED")


def test_it_is_off_by_default(granted):
    Worker.objects.update(certificate_subject=SUBJECT)
    error_of(granted.say("runner_heartbeat", actor=Behind(PROXY)), 401, "UNAUTHORIZED")


def test_a_revoked_workers_certificate_opens_nothing(granted, certified):
    Worker.objects.update(state=WorkerState.REVOKED)
    error_of(granted.say("runner_heartbeat", actor=Behind(PROXY)), 401, "UNAUTHORIZED")


def test_workers_without_a_certificate_do_not_share_one(certified):
    WorkerFactory()
    WorkerFactory()
    assert Worker.objects.filter(certificate_subject=None).count() == 2


@pytest.mark.parametrize(
    ("header", "proxies", "found"),
    [
        ("", [], []),
        ("X-S", ["10.0.0.0/8"], []),
        ("X-S", [], ["orchestrator.E001"]),
        ("", ["10.0.0.1"], ["orchestrator.E001"]),
        ("X-S", ["10.0.0.0/8", "the-proxy", "10.0.0.1/8"], ["orchestrator.E002"] * 2),
    ],
)
def test_half_a_setting_is_reported_at_the_start(settings, header, proxies, found):
    settings.CERTIFICATE_HEADER, settings.CERTIFICATE_PROXIES = header, proxies
    assert [error.id for error in run_checks() if error.id.startswith("orchestrator.")] == found


# --- in one envelope --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_a_wrong_method_is_405_and_says_which_is_right(wendy, path, method):
    response = wendy.call(method, path)
    assert (response.status_code, response["Allow"]) == (405, "POST")
    if method != "HEAD":
        assert error_of(response, 405, "INVALID_REQUEST")["details"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", [f"{INTERNAL}/nothing", f"{INTERNAL}/heartbeat/", "/api/v1/", "/api/v1/%00"])
def test_what_is_not_there_is_reported_in_the_same_envelope(wendy, path):
    error_of(wendy.post(path), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, "malformed_json"),
        (b"[]", {}, 400, "malformed_json"),
        (b'{"a": 1, "a": 2}', {}, 400, "malformed_json"),
        (b'{"lease_id": "\\u0000"}', {}, 400, "malformed_json"),
        (b'{"lease_id": "\\ud800"}', {}, 400, "malformed_json"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, {}, 400, "malformed_json"),
        (b"\xff\xfe", {}, 400, "malformed_json"),
        (b"", {}, 400, "invalid"),
        (b"x" * (1 << 20) + b"x", {}, 413, "payload_too_large"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        (b"{}", {"Accept": "text/html"}, 406, "not_acceptable"),
        (b"{}", {"Host": "evil.example"}, 400, "invalid"),
    ],
)
@pytest.mark.parametrize("path", PATHS.values())
def test_a_body_that_is_none_is_refused_in_the_same_envelope(wendy, path, body, headers, status, code):
    with nothing_lost():
        error = error_of(wendy.post(path, body, **headers), status, "INVALID_REQUEST")
    assert error["details"]["code"] == code
    assert error["details"]["request_id"]


def test_a_form_is_no_message(wendy):
    response = wendy.post(PATHS["Heartbeat"], b"lease_id=x", content_type="application/x-www-form-urlencoded")
    error_of(response, 415, "INVALID_REQUEST")


def test_a_flood_of_wrong_tokens_must_wait(granted, settings):
    settings.BAD_TOKENS_PER_MINUTE = 2
    wrong = Caller(new_token(WORKER_PREFIX))
    result = [granted.say("runner_heartbeat", actor=wrong) for _ in range(3)]
    assert [response.status_code for response in result] == [401, 401, 429]
    assert int(result[-1]["Retry-After"]) > 0
    error_of(result[-1], 429, "INVALID_REQUEST")


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_else_locks_is_busy(held, database_url):
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '300ms'")
    try:
        with psycopg.connect(database_url) as elsewhere:
            elsewhere.execute("SELECT FROM runtime_jobs FOR UPDATE")
            response = held.say("runner_heartbeat")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
    assert error_of(response, 503, "INTERNAL_ERROR")["details"]["code"] == "busy"
    assert response["Retry-After"] == "1"


def test_a_bug_says_nothing_about_itself(held, monkeypatch):
    monkeypatch.setattr("orchestrator.protocols.delta.runners.wire.heartbeat_ack", None)
    error = error_of(held.say("runner_heartbeat"), 500, "INTERNAL_ERROR")
    assert error["message"] == "The server failed unexpectedly. Its log contains the details under the request_id."
    assert Job.objects.count() == 1


def test_a_runner_speaks_for_its_own_lease_only(project, worker, granted):
    submitted_steps(project)
    other = WorkerFactory()
    theirs = Held(Caller(other.token), other)
    assert granted.say("runner_ack_lease", lease_id=theirs.lease.lease_ulid).json()["reason"] == "UNKNOWN_LEASE"
    assert theirs.say("runner_ack_lease").status_code == 200
