"""The fast path answers a chunk of a log and a question for a cancel as Django does, byte for byte."""

import base64
import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import psycopg
import pytest
from django.db import OperationalError
from django.urls import resolve
from psycopg_pool import PoolTimeout

from leases.models import Lease
from orchestrator.http.asgi.sync_handler import SyncASGIHandler
from orchestrator.http.fast_path import FastPath
from orchestrator.http.observability.routes import _template
from orchestrator.job_tokens.claims import TokenPurpose, sign, verify
from orchestrator.job_tokens.models import UsedToken
from orchestrator.protocols.shithub.fast_routes import ROUTES
from orchestrator.protocols.shithub.jobs import views
from orchestrator.protocols.shithub.jobs.serializers import MAX_CHUNK_BYTES
from runtime_jobs.db_time import database_now
from runtime_jobs.models import LogChunk, StepLog
from tests.orchestrator.http.both_paths import (
    KINDS,
    Sent,
    by_asgi,
    compare,
    new_servers,
    transaction_kept_open,
    tried,
    with_length,
)
from tests.orchestrator.protocols.shithub.world import register, start_run

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def handlers():
    """The servers of this module."""
    return new_servers(ROUTES)


@pytest.fixture
def world(runner, run):
    """A job in execution with one chunk in its log, an ended one, and tokens of all kinds."""
    claimed = runner.client.claim()
    assert claimed.run().status_code == 200
    assert claimed.log(b"first\n").status_code == 202
    start_run()
    other = register("other").client.claim()
    assert other.run().status_code == 200
    ended_token = other.token
    assert other.end().status_code == 200
    Lease.objects.open().update(expires_at=database_now() + timedelta(seconds=50))  # so that each call extends it
    claims = verify(claimed.token)
    tokens = {
        "next": claimed.token,
        "used": claimed.tokens[0],
        "registration": runner.client.registration,
        "checkout": sign(replace(claims, purpose=TokenPurpose.CHECKOUT)),
        "expired": sign(replace(claims, expires_at=claims.expires_at - timedelta(hours=1))),
        "chain": sign(replace(claims, chain=7)),
        "runner": sign(replace(claims, runner_id=claims.runner_id + 1)),
        "ended": ended_token,
        "signature": claimed.token[:-4] + "AAAA",
        "text": "x",
        "empty": "",
    }
    with transaction_kept_open():  # Django's test client, which made these calls, would let requests end it
        yield SimpleNamespace(job=claimed.job["id"], step=claimed.steps[0]["id"], tokens=tokens, claims=claims)


def post(world, call, body=b"", token="next", job=None, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {world.tokens[token]}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = tuple((name, value) for name, value in sent.items() if value is not None)
    return Sent(f"/api/v1/jobs/{world.job if job is None else job}/{call}", content, pairs)


def log(world, body=None, token="next", **options):
    """A chunk that continues the log, unless `body` has other members."""
    data = base64.b64encode(b"second\n").decode()
    return post(world, "logs", {"seq": 1, "chunk": data, "step_id": world.step} | (body or {}), token, **options)


def valid_requests(world):
    return {
        "the next chunk": log(world),
        "a chunk again": log(world, {"seq": 0}),
        "a chunk ahead": log(world, {"seq": 9}),
        "an annotation": log(world, {"chunk": base64.b64encode(b"::error::broken\n").decode()}),
        "no step": log(world, {"step_id": None}),
        "a line break in the base64": log(world, {"chunk": "c2Vj\nb25kCg"}),
        "a request id": log(world, X_Request_Id="mine"),
        "an odd request id": log(world, X_Request_Id="a b"),
        "leading zeros": log(world, job=f"00{world.job}"),
        "what the runner accepts": log(world, Accept="application/json"),
        "a question for a cancel": post(world, "cancel-check", {}),
        "a question without a body": replace(post(world, "cancel-check"), length="0"),
        "a question with another body": post(world, "cancel-check", b"{"),
    }


def refused_requests(world):
    cases = {f"{call} with the token {name}": post(world, call, {}, name) for call in ("logs", "cancel-check") for name in world.tokens if name != "next"}  # fmt: skip
    return cases | {
        "the job of an ended token": log(world, token="ended", job=verify(world.tokens["ended"]).job_id),
        "a job that does not exist": log(world, job=9_999_999),
        "job 0": log(world, job=0),
        "a job beyond all": log(world, job=2**63),
        "a job of a hundred digits": log(world, job="9" * 100),
        "no body": replace(post(world, "logs"), length="0"),
        "not JSON": post(world, "logs", b"{"),
        "a list": post(world, "logs", b"[]"),
        "a key twice": post(world, "logs", b'{"seq": 1, "seq": 1}'),
        "bad UTF-8": post(world, "logs", b'{"chunk": "\xff"}'),
        "an unknown field": log(world, {"sequence": 1}),
        "a missing field": post(world, "logs", {"seq": 1}),
        "a number as text": log(world, {"seq": "1"}),
        "a negative number": log(world, {"seq": -1}),
        "a number that is too large": log(world, {"seq": 2**31}),
        "no base64": log(world, {"chunk": "?"}),
        "an empty chunk": log(world, {"chunk": ""}),
        "a chunk that is too large": log(world, {"chunk": base64.b64encode(b"x" * (MAX_CHUNK_BYTES + 1)).decode()}),
        "a step that does not exist": log(world, {"step_id": 9_999_999}),
    }


def other_requests(world):
    """Requests that Django answers."""
    good = log(world)
    return {
        "a query": replace(good, query="x=1"),
        **{name: replace(good, method=name) for name in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")},
        "a trailing slash": replace(good, path=f"{good.path}/"),
        "a job that is no number": log(world, job="x"),
        "a negative job": log(world, job=-1),
        "a digit that is no number": log(world, job="³"),
        "an empty job": log(world, job=""),
        "another call": post(world, "status", {"status": "running"}),
        "another media type": log(world, Content_Type="text/plain"),
        "another scheme": log(world, Authorization="Basic eDp5"),
        "no authorization": log(world, Authorization=None),
        "a cookie": log(world, Cookie="sessionid=x"),
        "another host": log(world, Host="evil.example"),
        "too large": post(world, "logs", b" " * ((768 << 10) + 1)),
    }


@pytest.fixture
def left_behind(counted):
    """Return a function that reads what a call leaves in the database, and what was counted since the last time."""

    def read():
        found = [("used tokens", str(UsedToken.objects.count())), ("leases", *Lease.objects.order_by("pk").values_list("state", flat=True))]  # fmt: skip
        found += [tuple(map(str, row)) for row in LogChunk.objects.order_by("pk").values_list("step", "seq", "chunk")]
        found += [tuple(map(str, row)) for row in StepLog.objects.order_by("pk").values_list("next_seq", "held", "closed_at")]  # fmt: skip
        found += [("counted", str(value)) for value in counted]
        counted.clear()
        return found

    counted.clear()
    return read


@KINDS
def test_accepted_calls_have_the_same_responses(handlers, world, kind, caplog, left_behind):
    cases = valid_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True, rows=left_behind)
    statuses = [tried(handlers[kind][1], sent, caplog).status for sent in cases.values()]
    assert sorted(set(statuses)) == [200, 202]


@KINDS
def test_refused_calls_have_the_same_responses(handlers, world, kind, caplog, left_behind):
    cases = refused_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True, rows=left_behind)
    assert {tried(handlers[kind][1], sent, caplog).status for sent in cases.values()} == {400, 401, 404}


@KINDS
def test_other_requests_are_django_s(handlers, world, kind, caplog, left_behind):
    cases = other_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=False, rows=left_behind)


def fail_by(error, cause):
    def fail(*_args, **_kwargs):
        raise error from cause

    return fail


@KINDS
@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (OperationalError("gone"), psycopg.OperationalError("the server closed the connection"), 503),
        (OperationalError("pool"), PoolTimeout("no connection"), 503),
        (OperationalError("slow"), psycopg.errors.LockNotAvailable("lock"), 503),
        (RuntimeError("on purpose"), None, 500),
    ],
    ids=["database", "pool", "lock", "fault"],
)
def test_a_failure_is_answered_alike_and_uses_no_token(
    handlers, world, kind, caplog, monkeypatch, left_behind, error, cause, status
):
    monkeypatch.setattr(views, "perform_call", fail_by(error, cause))
    sent = log(world)
    compare(handlers, kind, {"": sent}, caplog, is_fast=True, rows=left_behind)
    found = tried(handlers[kind][1], sent, caplog, left_behind)
    assert found.status == status
    assert set(json.loads(found.body)) == {"error"}


@KINDS
def test_a_root_key_that_cannot_be_used_is_503_alike(handlers, world, kind, caplog, settings, left_behind):
    sent = log(world)
    settings.ACTIONS_ROOT_KEY = "short"
    compare(handlers, kind, {"": sent}, caplog, is_fast=True, rows=left_behind)
    found = tried(handlers[kind][1], sent, caplog, left_behind)
    assert (found.status, dict(found.headers)["retry-after"]) == (503, "10")


def test_the_next_token_takes_turns_as_its_runner(world):
    handler = SyncASGIHandler(FastPath(ROUTES))
    sent = log(world)
    answer = json.loads(by_asgi(handler, sent).body)

    def client_of(token):
        headers = with_length(replace(sent, headers=(("Authorization", f"Bearer {token}"),)))
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        return handler.identities.identify({"headers": encoded, "client": (sent.peer, 4)})

    assert client_of(answer["next_token"]) == ("principal", f"runner:{world.claims.runner_id}")
    assert client_of(world.tokens["next"]) == sent.peer


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_route_is_named_as_django_names_it(route):
    found = resolve(route.path.replace("<job_id>", "7"))
    assert _template(found.route) == route.path
    assert not getattr(found.func, "is_long_poll", False)
