"""The fast path answers what Django answers, byte for byte, and touches nothing that it does not take."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.urls import resolve
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.cause import Cause
from orchestrator.http.asgi.long_poll import WAIT_SECONDS, PollAttempt
from orchestrator.http.asgi.sync_handler import DISCONNECTED, SyncASGIHandler
from orchestrator.http.auth import authentication
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.http.auth.permissions import DenyAll
from orchestrator.http.fast_path import FastPath, FastResponse
from orchestrator.http.observability.routes import _template
from orchestrator.http.wsgi import FastPathWSGI
from orchestrator.protocols.native.fast_routes import ROUTES
from orchestrator.services import job_end, worker_state
from runtime_jobs.models import ApiToken
from runtime_jobs.models.tenants import Scope
from tests.factories import (
    OPERATOR,
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
)
from tests.orchestrator.http.both_paths import (
    KINDS,
    Sent,
    by_asgi,
    by_wsgi,
    compare,
    counters,
    new_servers,
    transaction_kept_open,
    tried,
    with_length,
)
from workers.registry.models import WorkerState
from workers.registry.tokens import digest_of

LEASES = "/v1/runtime/leases"
JOBS = "/v1/runtime/jobs"
UNKNOWN = "rtl_01kkygn4z3fkef0g4tgm6g3b1j"
UPLOADED = {"result": {"status": "uploaded", "ingest_run_id": "run-2", "exit_code": 0}}
CACHE = {"type": "deps", "key": "lock-1", "hit": True, "read_only": False}
FAILED = {"result": {"status": "failed", "reason": "command_failed", "exit_code": 1, "message": "no"}}


@pytest.fixture(scope="module")
def handlers():
    """The servers of this module."""
    return new_servers(ROUTES)


# --- the requests ------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(organization, settings):
    """Callers of all kinds, and leases in the states that matter."""
    settings.INGEST_URL = "https://ingest.example"
    worker, other = WorkerFactory(slug="w"), WorkerFactory(slug="other")
    project = organization.projects.get()
    submitted(project), submitted(project), submitted(project)
    held = claimed(worker).lease
    ended = claimed(worker).lease
    job_end.complete(lease_ulid=ended.lease_ulid, worker=worker, exit_code=0, result={}, ingest_run_id="run-1")
    revoked, expired = api_token(organization), api_token(organization)
    ApiToken.objects.filter(digest=digest_of(revoked)).update(revoked_at=timezone.now())
    ApiToken.objects.filter(digest=digest_of(expired)).update(expires_at=timezone.now() - timedelta(seconds=1))
    gone = WorkerFactory(slug="gone")
    worker_state.set_worker_state(worker_id=gone.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    drained = WorkerFactory(slug="drained")
    worker_state.set_worker_state(worker_id=drained.worker_id, state=WorkerState.DRAINING, cause=Cause(OPERATOR))
    return SimpleNamespace(
        held=held.lease_ulid,
        ended=ended.lease_ulid,
        worker_id=worker.worker_id,
        tokens={
            "alice": api_token(organization),
            "reader": api_token(organization, (Scope.JOBS_READ,)),
            "stranger": api_token(OrganizationFactory(slug="elsewhere")),
            "revoked": revoked,
            "expired": expired,
            "worker": worker.token,
            "other": other.token,
            "gone": gone.token,
            "drained": drained.token,
        },
        drained_id=drained.worker_id,
    )


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    """No refused tokens of another test, and the test's transaction stays open."""
    monkeypatch.setattr(authentication, "refusals", FailedAuthThrottle(clock=lambda: 30.0))
    with transaction_kept_open():
        yield


def post(world, path, body, token="worker", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {world.tokens.get(token, token)}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Sent(path, content, tuple((name, value) for name, value in sent.items() if value is not None))


def valid_requests(world):
    """One request for each route that succeeds, and repeats."""
    claim = {"worker_id": world.worker_id}
    of = f"{LEASES}/{world.held}"
    one = {"leases": [{"lease_id": world.held}, {"lease_id": UNKNOWN}]}
    return {
        "submit": post(world, JOBS, SUBMIT_BODY, "alice"),
        "submit any": post(world, "/v1/jobs", SUBMIT_ANY_BODY, "alice"),
        "submit with key": post(world, JOBS, SUBMIT_BODY, "alice", Idempotency_Key="k1"),
        "bulk": post(world, f"{JOBS}/bulk", {"jobs": [SUBMIT_BODY, {"x": 1}]}, "alice"),
        "bulk any": post(world, "/v1/jobs/bulk", {"jobs": [SUBMIT_ANY_BODY]}, "alice"),
        "claim": post(world, LEASES, claim),
        "claim many": post(world, LEASES, claim | {"max_leases": 5, "acknowledge": True}),
        "claim of nothing": post(world, LEASES, claim | {"job_types": ["steps"]}),
        "acknowledge": post(world, f"{of}/acknowledge", {}),
        "acknowledge without body": replace(post(world, f"{of}/acknowledge", b""), length="0"),
        "heartbeat": post(world, f"{of}/heartbeat", {"phase": "executing", "progress": {"percent": 12.5}}),
        "complete": post(world, f"{of}/complete", UPLOADED),
        "complete again": post(world, f"{LEASES}/{world.ended}/complete", {"result": {"status": "uploaded", "ingest_run_id": "run-1", "exit_code": 0}}),
        "complete with caches": post(world, f"{of}/complete", {"result": UPLOADED["result"] | {"caches": [CACHE]}}),
        "fail": post(world, f"{of}/fail", FAILED),
        "acknowledge many": post(world, f"{LEASES}/acknowledge", one),
        "heartbeat many": post(world, f"{LEASES}/heartbeat", one),
        "complete many": post(world, f"{LEASES}/complete", {"leases": [{"lease_id": world.held, **UPLOADED}]}),
        "fail many": post(world, f"{LEASES}/fail", {"leases": [{"lease_id": world.held, **FAILED}]}),
    }  # fmt: skip


def refused_requests(world):
    """Requests that take the fast path, and that the operation, the serializer or the authentication refuses."""
    of = f"{LEASES}/{world.held}"
    cases = {
        f"token of {name}": post(world, JOBS, SUBMIT_BODY, name) for name in world.tokens
    } | {
        f"claim by {name}": post(world, LEASES, {"worker_id": world.worker_id}, name) for name in world.tokens
    } | {
        f"heartbeat by {name}": post(world, f"{of}/heartbeat", {}, name) for name in world.tokens
    }  # fmt: skip
    return cases | {
        "an unknown token": post(world, JOBS, SUBMIT_BODY, "rto_api_" + "x" * 43),
        "no token": post(world, JOBS, SUBMIT_BODY, ""),
        "a short token": post(world, JOBS, SUBMIT_BODY, "rto_api_x"),
        "claim of a drained worker": post(world, LEASES, {"worker_id": world.drained_id}, "drained"),
        "another pool": post(world, LEASES, {"worker_id": world.worker_id, "pool": "gpu"}),
        "an unknown lease": post(world, f"{LEASES}/{UNKNOWN}/heartbeat", {}),
        "an ended lease": post(world, f"{LEASES}/{world.ended}/heartbeat", {}),
        "a conflict": post(world, f"{LEASES}/{world.ended}/complete", UPLOADED),
        "no run": post(world, f"{of}/complete", {"result": {"status": "succeeded", "exit_code": 0}}),
        "a phase that does not exist": post(world, f"{of}/heartbeat", {"phase": "dreaming"}),
        "an unknown field": post(world, f"{of}/heartbeat", {"phaze": "executing"}),
        "a wrong type": post(world, f"{of}/heartbeat", {"phase": 1}),
        "a body for none": post(world, f"{of}/acknowledge", {"x": 1}),
        "a missing result": post(world, f"{of}/complete", {}),
        "an empty list": post(world, f"{LEASES}/heartbeat", {"leases": []}),
        "the same lease twice": post(world, f"{LEASES}/heartbeat", {"leases": [{"lease_id": world.held}] * 2}),
        "an entry that is no object": post(world, f"{LEASES}/heartbeat", {"leases": [1]}),
        "an odd session": post(world, f"{of}/heartbeat", {}, Worker_Session="x"),
        "a session of another process": post(world, f"{of}/heartbeat", {}, Worker_Session="0" * 26),
        "an odd key": post(world, JOBS, SUBMIT_BODY, "alice", Idempotency_Key="é"),
        "a long key": post(world, JOBS, SUBMIT_BODY, "alice", Idempotency_Key="k" * 256),
        "a project that is missing": post(world, JOBS, SUBMIT_BODY | {"project_slug": "nowhere"}, "alice"),
        "a job type that is missing": post(world, "/v1/jobs", SUBMIT_ANY_BODY | {"job_type": "x"}, "alice"),
        "not JSON": post(world, f"{of}/heartbeat", b"{"),
        "a list": post(world, f"{of}/heartbeat", b"[]"),
        "a key twice": post(world, f"{of}/heartbeat", b'{"phase": null, "phase": null}'),
        "bad UTF-8": post(world, f"{of}/heartbeat", b'{"phase": "\xff"}'),
        "half a pair": post(world, f"{of}/heartbeat", b'{"phase": "\\ud800"}'),
        "NUL": post(world, f"{of}/heartbeat", b'{"phase": "\\u0000"}'),
        "NaN": post(world, f"{of}/heartbeat", b'{"progress": {"percent": NaN}}'),
        "depth": post(world, f"{of}/heartbeat", b'{"a":' * 70 + b"1" + b"}" * 70),
        "line separators": post(world, f"{of}/heartbeat", {"a\u2028b": 1}),
        "a request id": post(world, f"{of}/heartbeat", {"x": 1}, X_Request_Id="mine"),
        "an odd request id": post(world, f"{of}/heartbeat", {"x": 1}, X_Request_Id="a b"),
        "a token as request id": post(world, f"{of}/heartbeat", {"x": 1}, X_Request_Id=f"rto_api_{'x' * 43}"),
    }  # fmt: skip


def other_requests(world):
    """Requests that Django answers."""
    of = f"{LEASES}/{world.held}"
    beat = post(world, f"{of}/heartbeat", {})
    return {
        "a query": replace(beat, query="x=1"),
        "a token in the query": replace(beat, query=f"token={world.tokens['worker']}"),
        **{name: replace(beat, method=name) for name in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE")},
        "a trailing slash": replace(beat, path=f"{beat.path}/"),
        "two slashes": replace(beat, path=beat.path.replace("/v1", "//v1")),
        "a line end": replace(beat, path=f"{beat.path}\n"),
        "upper case": replace(beat, path=beat.path.upper()),
        "a malformed id": replace(beat, path=f"{LEASES}/rtl_x/heartbeat"),
        "an id of a job": replace(beat, path=f"{LEASES}/{world.held.replace('rtl', 'rtj')}/heartbeat"),
        "an empty id": replace(beat, path=f"{LEASES}//heartbeat"),
        "another path": replace(beat, path=f"{of}/report"),
        "a cookie": post(world, beat.path, {}, Cookie="sessionid=x"),
        "a form": post(world, beat.path, b"phase=executing", Content_Type="application/x-www-form-urlencoded"),
        "no media type": post(world, beat.path, b'{"phase": "executing"}', Content_Type=None),
        "another charset": post(world, beat.path, {}, Content_Type="application/json; charset=latin-1"),
        "utf-8": post(world, beat.path, {}, Content_Type='application/json; charset="UTF-8"'),
        "compressed": post(world, beat.path, {}, Content_Encoding="gzip"),
        "chunked": post(world, beat.path, {}, Transfer_Encoding="chunked"),
        "another scheme": post(world, beat.path, {}, Authorization="Basic eDp5"),
        "the scheme in lower case": post(world, beat.path, {}, Authorization=f"bearer {world.tokens['worker']}"),
        "no authorization": post(world, beat.path, {}, Authorization=None),
        "two tokens": replace(beat, headers=(*beat.headers, beat.headers[1])),
        "another host": post(world, beat.path, {}, Host="evil.example"),
        "an odd host": post(world, beat.path, {}, Host="local host"),
        "pages only": post(world, beat.path, {}, Accept="text/html"),
        "indented": post(world, beat.path, {}, Accept="application/json; indent=4"),
        "a browser": post(world, beat.path, {}, Accept="text/html, */*;q=0.1"),
        "a length that is no number": replace(beat, length="x"),
        "a length with a sign": replace(beat, length="+2"),
        "too large": post(world, LEASES, b" " * (64 * 1024 + 1)),
    }  # fmt: skip


@KINDS
def test_valid_requests_have_the_same_responses(handlers, world, kind, caplog):
    cases = valid_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True)
    statuses = {tried(handlers[kind][1], sent, caplog).status for sent in cases.values()}
    assert statuses == {200, 201, 204}


@KINDS
def test_refused_requests_have_the_same_responses(handlers, world, kind, caplog):
    cases = refused_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True)
    statuses = {tried(handlers[kind][1], sent, caplog).status for sent in cases.values()}
    assert statuses >= {400, 401, 403, 404, 409}


@KINDS
def test_other_requests_are_django_s(handlers, world, kind, caplog):
    cases = other_requests(world)
    # The ASGI router states the true length before; a WSGI server joins repeated headers.
    left_out = ("a length", "chunked") if kind == "asgi" else ("two tokens",)
    cases = {name: sent for name, sent in cases.items() if not name.startswith(left_out)}
    compare(handlers, kind, cases, caplog, is_fast=False)


def test_a_claim_that_waits_keeps_its_thread_in_django_under_wsgi(handlers, world, caplog):
    claim = post(world, LEASES, {"worker_id": world.worker_id, "wait_seconds": 0.001, "job_types": ["steps"]})
    compare(handlers, "wsgi", {"wait": claim}, caplog, is_fast=False)


@KINDS
@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("redirect", [False, True])
def test_https_and_proxies(world, kind, caplog, settings, proxied, redirect):
    settings.SECURE_SSL_REDIRECT, settings.SECURE_HSTS_SECONDS = redirect, 31536000
    settings.SECURE_HSTS_PRELOAD = settings.SECURE_HSTS_INCLUDE_SUBDOMAINS = redirect
    settings.BEHIND_PROXY = proxied
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if proxied else None
    pair = new_servers(ROUTES)
    beat = post(world, JOBS, SUBMIT_BODY, "alice")
    for forwarded in (None, "https", "http", "https, http", "HTTPS", ""):
        for scheme in ("http", "https"):
            extra = (
                () if forwarded is None else (("X-Forwarded-Proto", forwarded), ("X-Forwarded-For", "9.9.9.9, 8.8.8.8"))
            )
            sent = replace(beat, scheme=scheme, headers=beat.headers + extra)
            is_https = (scheme if not proxied or forwarded is None else forwarded.split(",")[0]) == "https"
            compare(pair, kind, {f"{scheme} {forwarded}": sent}, caplog, is_fast=is_https or not redirect)


@KINDS
@pytest.mark.parametrize("redirect", [False, True])
def test_the_proxy_s_header_has_the_name_of_the_settings(world, kind, caplog, settings, redirect):
    settings.SECURE_SSL_REDIRECT, settings.SECURE_HSTS_SECONDS = redirect, 31536000
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_OUTER_SCHEME", "https")
    servers = new_servers(ROUTES)
    beat = post(world, JOBS, SUBMIT_BODY, "alice")
    for name, value in (("X-Outer-Scheme", "https"), ("X-Outer-Scheme", "http"), ("X-Forwarded-Proto", "https")):
        sent = replace(beat, headers=(*beat.headers, (name, value)))
        is_https = (name, value) == ("X-Outer-Scheme", "https")
        compare(servers, kind, {f"{name} {value}": sent}, caplog, is_fast=is_https or not redirect)


@KINDS
@pytest.mark.parametrize("has_message", [False, True])
def test_a_permission_that_returns_false_refuses(world, kind, caplog, monkeypatch, has_message):
    texts = {"message": "Not on Sundays.", "code": "closed"} if has_message else {}
    denying = type("Denying", (DenyAll,), texts)
    path = f"{LEASES}/{world.held}/heartbeat"
    monkeypatch.setattr(resolve(path).func.cls, "permission_classes", [denying])
    routes = [replace(route, permission=denying()) for route in ROUTES]
    servers = new_servers(routes)
    sent = post(world, path, {})
    compare(servers, kind, {"": sent}, caplog, is_fast=True)
    assert tried(servers[kind][1], sent, caplog).status == 403


@KINDS
def test_bad_tokens_are_counted_once_and_throttled_alike(handlers, world, kind, caplog, settings, monkeypatch):
    settings.BAD_TOKENS_PER_MINUTE = 3
    bad = post(world, JOBS, SUBMIT_BODY, "rto_api_" + "x" * 43)
    seen = []
    for answer in handlers[kind]:
        monkeypatch.setattr(authentication, "refusals", FailedAuthThrottle(clock=lambda: 30.0))
        found = [tried(answer, bad, caplog) for _ in range(5)]
        seen.append(found)
        assert [one.status for one in found] == [401] * 3 + [429] * 2
        assert tried(answer, replace(bad, peer="198.51.100.1"), caplog).status == 401
    assert seen[0] == seen[1]


@KINDS
def test_a_failure_is_answered_alike(handlers, world, kind, caplog, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("on purpose")

    monkeypatch.setattr("orchestrator.services.batch_calls.renew_many", fail)
    compare(handlers, kind, {"": post(world, f"{LEASES}/{world.held}/heartbeat", {})}, caplog, is_fast=True)


def add_header(get_response):
    def middleware(request):
        response = get_response(request)
        response["X-Added"] = "yes"
        return response

    return middleware


def test_the_fast_path_has_the_headers_of_every_middleware(world, caplog, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.add_header"]
    handler = SyncASGIHandler(FastPath(ROUTES))
    sent = post(world, f"{LEASES}/{world.held}/heartbeat", {})
    found = tried(lambda sent: by_asgi(handler, sent), sent, caplog)
    assert ("X-Added", "yes") in [(name.title(), value) for name, value in found.headers]


@KINDS
def test_a_match_executes_and_counts_nothing(handlers, world, kind, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(authentication, "authenticate_bearers", None)
    path = FastPath(ROUTES)
    monkeypatch.setattr(FastPath, "answer", lambda *_, **__: pytest.fail("it was executed"))
    handler, application = SyncASGIHandler(path), FastPathWSGI(path, lambda environ, _: environ["wsgi.input"].read())
    monkeypatch.setattr(handler, "_run_django", lambda _scope, body: SimpleNamespace(body=body.read()))
    before = counters()
    for name, sent in other_requests(world).items():
        if name.startswith(("a length", "chunked") if kind == "asgi" else ("two tokens",)):
            continue
        with django_assert_num_queries(0):
            if kind == "wsgi":
                environ_body = application(environ_of(sent), None)
                assert environ_body == sent.body, "Django reads the whole body"
            else:
                assert run_asgi_body(handler, sent) == sent.body
    assert counters() == before


def environ_of(sent):
    found = {}

    def keep(environ, start_response):
        found.update(environ)
        start_response("200 OK", [])
        return []

    by_wsgi(keep, sent)
    return found


def run_asgi_body(handler, sent):
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            handler,
            "_run_django",
            lambda _scope, body: found.append(body.read()) or FastResponse(200, [], b"", None),
        )
        by_asgi(handler, sent)
    return found[0]


def test_a_body_that_breaks_off_is_left_to_django_under_wsgi(handlers, world, caplog):
    beat = post(world, f"{LEASES}/{world.held}/heartbeat", {"phase": "executing"})
    compare(handlers, "wsgi", {"short": replace(beat, length=str(len(beat.body) + 5))}, caplog, is_fast=False)


def test_a_rewritten_path_is_left_to_django_under_wsgi():
    application = FastPathWSGI(FastPath(ROUTES), lambda *_: ["django"])
    sent = Sent(
        f"{LEASES}/{UNKNOWN}/heartbeat", headers=(("Authorization", "Bearer x"), ("Content-Type", "application/json"))
    )
    for name in ("SCRIPT_NAME", "SCRIPT_URL", "REDIRECT_URL"):
        assert application(environ_of(sent) | {name: "/prefix"}, None) == ["django"]


# --- long polls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_types", [["steps"], ["runtime"]])
def test_attempts_of_a_long_poll_have_the_same_responses_and_the_same_wait(handlers, world, caplog, job_types):
    body = {"worker_id": world.worker_id, "job_types": job_types, "wait_seconds": 60}
    sent = post(world, LEASES, body)
    found = []
    for handler in (SyncASGIHandler(), SyncASGIHandler(FastPath(ROUTES))):
        attempt = PollAttempt(WAIT_SECONDS, json.dumps(body).encode())
        scope = {"orchestrator.poll_attempt": attempt}
        first = tried(lambda sent, h=handler, s=scope: by_asgi(h, sent, **s), sent, caplog)
        entry = attempt.entry
        second = tried(lambda sent, h=handler, s=scope: by_asgi(h, sent, **s), sent, caplog)
        assert attempt.entry is entry, "the time of arrival is that of the first attempt"
        assert first.request_id == second.request_id
        found.append((first, second, attempt.offer, attempt.keep_waiting, entry.route))
    assert found[0] == found[1]
    assert found[0][3] == (job_types == ["steps"])


def test_a_client_that_disconnects_is_logged_as_499(world, caplog):
    sent = post(world, f"{LEASES}/{world.held}/heartbeat", {})
    done = iter([False, True])
    handler = SyncASGIHandler(FastPath(ROUTES))
    gone = {DISCONNECTED: SimpleNamespace(done=lambda: next(done))}
    found = tried(lambda sent: by_asgi(handler, sent, **gone), sent, caplog)
    assert next(line for line in found.log if " POST " in line).split()[3] == "499"


# --- the whole way -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_connection_returns_to_the_pool(monkeypatch):
    """Through the event loop and a thread, as in a server."""
    worker = WorkerFactory()
    handler = SyncASGIHandler(FastPath(ROUTES))
    sent = post(SimpleNamespace(tokens={}), f"{LEASES}/{UNKNOWN}/heartbeat", {}, worker.token)
    headers = [(name.lower().encode(), value.encode()) for name, value in with_length(sent)]
    messages = []

    async def story():
        left = asyncio.get_running_loop().create_future()
        replies = iter([{"type": "http.request", "body": sent.body, "more_body": False}])

        async def receive():
            message = next(replies, None)
            return message or await left

        async def send(message):
            messages.append(message)

        scope = {
            "type": "http", "method": "POST", "path": sent.path, "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http",
        }  # fmt: skip
        await handler(scope, receive, send)

    taken, returned = [], []
    get, put = connection.pool.getconn, connection.pool.putconn
    monkeypatch.setattr(connection.pool, "getconn", lambda *a, **k: taken.append(get(*a, **k)) or taken[-1])
    monkeypatch.setattr(connection.pool, "putconn", lambda found: returned.append(found) or put(found))
    asyncio.run(story())
    handler.threads.executor.shutdown()
    assert messages[0]["status"] == 409
    assert json.loads(messages[1]["body"])["code"] == "stale_lease"
    assert len(taken) == 1
    assert returned.count(taken[0]) == 1  # a thread of an earlier test may return another one


# --- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_route_is_named_as_django_names_it(route):
    found = resolve(route.path.replace("<lease_id>", UNKNOWN))
    assert _template(found.route) == route.path
    assert getattr(found.func, "is_long_poll", False) == route.is_long_poll


def test_each_middleware_is_considered():
    """A new middleware is bypassed by the fast path, unless `match` or `answer` does its work."""
    assert django_settings.MIDDLEWARE == [
        "orchestrator.http.middleware.arrival",  # request id, refusals, Cache-Control, log: `match` and `answer`
        "django.middleware.security.SecurityMiddleware",  # redirects: `match`; headers: `answer`
        "whitenoise.middleware.WhiteNoiseMiddleware",  # files only
        "django.contrib.sessions.middleware.SessionMiddleware",  # a cookie does not match
        "django.middleware.common.CommonMiddleware",  # unknown hosts do not match; Content-Length: `answer`
        "django.middleware.csrf.CsrfViewMiddleware",  # a cookie does not match
        "django.contrib.auth.middleware.AuthenticationMiddleware",  # likewise
        "orchestrator.http.auth.login.LoginThrottleMiddleware",  # forms with passwords only
        "django.contrib.messages.middleware.MessageMiddleware",  # a cookie does not match
        "django.middleware.clickjacking.XFrameOptionsMiddleware",  # header: `answer`
        "orchestrator.http.csp.ContentPolicyMiddleware",  # header: `answer`
    ]
    assert django_settings.DISALLOWED_USER_AGENTS == []
    assert not django_settings.PREPEND_WWW


# --- any request -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([
    "Accept", "Authorization", "Content-Type", "Content-Encoding", "Cookie", "Host", "Idempotency-Key", "Origin",
    "Traceparent", "Worker-Session", "X-Forwarded-For", "X-Forwarded-Proto", "X-Http-Method-Override", "X-Request-Id",
    "If-Match", "Lease-Fence", "Referer", "Sec-Fetch-Site", "X_Request_Id",
])  # fmt: skip
VALUES = st.sampled_from([
    "", "*/*", "application/json", "application/json ", "application/json;charset=utf-8", "text/plain", "Bearer ",
    "localhost", "127.0.0.1:80", "a.example", "gzip", "identity", "k", "01kkygn4z3fkef0g4tgm6g3b1j", "https", "GET",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sessionid=1", "evil",
]) | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=8)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["phase", "progress", "worker_id", "max_leases", "labels", "result", "leases", "jobs", "pool"])
BODIES = (
    st.dictionaries(FIELDS, JSON | st.sampled_from(["executing", {"percent": 5}, {"status": "succeeded"}]), max_size=3)
    .map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=12)
    | st.just(b"{}")
)  # fmt: skip


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_request_has_the_same_response(handlers, world, kind, caplog, data):
    valid = valid_requests(world)
    sent = data.draw(st.sampled_from(sorted(valid)).map(valid.get))
    if data.draw(st.booleans()):
        sent = replace(sent, body=data.draw(BODIES), length=None)
    for name, value in data.draw(st.lists(st.tuples(NAMES, VALUES), max_size=2)):
        kept = [pair for pair in sent.headers if pair[0] != name or data.draw(st.booleans())]
        sent = replace(sent, headers=(*kept, (name, value)))
    if kind == "wsgi" and b"wait_seconds" in sent.body:
        return
    plain, fast = handlers[kind]
    assert tried(fast, sent, caplog) == tried(plain, sent, caplog)
