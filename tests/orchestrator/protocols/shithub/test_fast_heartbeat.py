"""The fast path answers a heartbeat of a runner as Django does, byte for byte."""

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import psycopg
import pytest
from django.db import OperationalError

from leases.models import Lease
from orchestrator.http.asgi.sync_handler import SyncASGIHandler
from orchestrator.http.fast_path import FastPath
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.protocols.shithub.fast_routes import ROUTES
from orchestrator.protocols.shithub.heartbeat import views
from orchestrator.protocols.shithub.heartbeat_rate import LIMIT, WINDOW_SECONDS
from runtime_jobs.db_time import database_now
from runtime_jobs.models import MaskSnapshot
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
from tests.orchestrator.protocols.shithub.runner import HEARTBEAT, LABELS
from tests.orchestrator.protocols.shithub.test_fast_path import fail_by
from tests.orchestrator.protocols.shithub.windows import heartbeat_window
from tests.orchestrator.protocols.shithub.world import register, start_run
from workers.models import ActionsRunner, Worker

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def handlers():
    """The servers of this module."""
    return new_servers(ROUTES)


@pytest.fixture
def world():
    """A job that waits, a runner with free capacity, one that executes a job, one at its limit, and a revoked one."""
    start_run()
    busy = register("busy")
    claimed = busy.client.claim()
    assert claimed.run().status_code == 200
    start_run()
    free, counted, revoked = register("free"), register("counted"), register("revoked")
    Worker.objects.filter(pk=revoked.row.pk).update(state="revoked")
    # Windows that end later, so that the seconds until their end do not change during the test.
    end = database_now() + timedelta(seconds=WINDOW_SECONDS + 30)
    for runner, number in ((free, 1), (busy, 1), (counted, LIMIT)):
        window = heartbeat_window(runner)
        times = {"starts_at": end, "ends_at": end, "expires_at": end}
        ThrottleWindow.objects.update_or_create(
            key=window.key, defaults={"kind": window.kind, "current": number, "previous": 0, **times}
        )
    tokens = {
        "free": free.client.registration,
        "busy": busy.client.registration,
        "counted": counted.client.registration,
        "revoked": revoked.client.registration,
        "job": claimed.token,
        "unknown": "0" * 64,
        "text": "x",
    }
    with transaction_kept_open():  # Django's test client, which made these calls, would let requests end it
        yield SimpleNamespace(tokens=tokens, job=claimed.job["id"], free=free.row.pk)


def beat(world, body=b"", token="free", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {world.tokens[token]}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Sent(HEARTBEAT, content, tuple(sent.items()))


@pytest.fixture
def left_behind(counted):
    """Return a function that reads what a heartbeat leaves in the database, and what was counted."""

    def read():
        found = [("leases", *Lease.objects.order_by("pk").values_list("state", flat=True))]
        found += [("masks", str(MaskSnapshot.objects.count()))]
        found += [tuple(map(str, row)) for row in ThrottleWindow.objects.order_by("pk").values_list("current")]
        found += [tuple(map(str, row)) for row in ActionsRunner.objects.order_by("pk").values_list("labels", "version")]
        found += [tuple(map(str, row)) for row in Worker.objects.order_by("pk").values_list("capacity", "state")]
        found += [("counted", str(value)) for value in counted]
        counted.clear()
        return found

    counted.clear()
    return read


def valid_requests(world):
    labels = {"labels": LABELS}
    return {
        "a claim": beat(world, labels),
        "a claim of the later generation": beat(world, labels | {"host_name": "h", "version": "1.2"}),
        "no labels that fit": beat(world, {"labels": ["windows"]}),
        "no body": replace(beat(world), length="0"),
        "an empty object": beat(world, {}),
        "no capacity left": beat(world, labels, "busy"),
        "a job that it has lost": beat(world, labels | {"active_job_ids": []}, "busy"),
        "a job that it executes": beat(world, labels | {"active_job_ids": [world.job]}, "busy"),
        "a request id": beat(world, labels, X_Request_Id="mine"),
        "what the runner accepts": beat(world, labels, Accept="application/json"),
    }


def refused_requests(world):
    cases = {f"the token {name}": beat(world, {}, name) for name in ("counted", "revoked", "job", "unknown", "text")}
    return cases | {
        "not JSON": beat(world, b"{"),
        "a list": beat(world, b"[]"),
        "a key twice": beat(world, b'{"capacity": 1, "capacity": 1}'),
        "bad UTF-8": beat(world, b'{"version": "\xff"}'),
        "an unknown field": beat(world, {"label": []}),
        "labels as text": beat(world, {"labels": "linux"}),
        "a label with a blank": beat(world, {"labels": ["a b"]}),
        "too much capacity": beat(world, {"capacity": 65}),
        "too many jobs": beat(world, {"active_job_ids": [1, 2, 3]}),
        "a job twice": beat(world, {"capacity": 3, "active_job_ids": [1, 1]}),
    }


@KINDS
def test_accepted_heartbeats_have_the_same_responses(handlers, world, kind, caplog, left_behind):
    cases = valid_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True, rows=left_behind)
    found = {name: tried(handlers[kind][1], sent, caplog, left_behind) for name, sent in cases.items()}
    assert found["a claim"].status == found["a job that it has lost"].status == 200
    assert found["no labels that fit"].status == found["no capacity left"].status == 204
    assert all(dict(each.headers)["x-ratelimit-limit"] == str(LIMIT) for each in found.values())


@KINDS
def test_refused_heartbeats_have_the_same_responses(handlers, world, kind, caplog, left_behind):
    cases = refused_requests(world)
    compare(handlers, kind, cases, caplog, is_fast=True, rows=left_behind)
    found = {name: tried(handlers[kind][1], sent, caplog) for name, sent in cases.items()}
    assert {each.status for each in found.values()} == {400, 401, 429}
    assert dict(found["too much capacity"].headers)["x-ratelimit-remaining"] == str(LIMIT - 2)


@KINDS
@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (OperationalError("gone"), psycopg.OperationalError("the server closed the connection"), 503),
        (RuntimeError("on purpose"), None, 500),
    ],
    ids=["database", "fault"],
)
def test_a_failure_is_answered_alike(handlers, world, kind, caplog, monkeypatch, left_behind, error, cause, status):
    monkeypatch.setattr(views, "receive_heartbeat", fail_by(error, cause))
    sent = beat(world, {})
    compare(handlers, kind, {"": sent}, caplog, is_fast=True, rows=left_behind)
    found = tried(handlers[kind][1], sent, caplog, left_behind)
    assert found.status == status
    assert set(json.loads(found.body)) == {"error"}
    assert dict(found.headers)["x-ratelimit-limit"] == str(LIMIT)


def test_both_tokens_take_turns_as_the_runner(world):
    handler = SyncASGIHandler(FastPath(ROUTES))
    sent = beat(world, {"labels": LABELS})
    answer = json.loads(by_asgi(handler, sent).body)
    for token in (world.tokens["free"], answer["token"]):
        headers = with_length(replace(sent, headers=(("Authorization", f"Bearer {token}"),)))
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        client = handler.identities.identify({"headers": encoded, "client": (sent.peer, 4)})
        assert client == ("principal", f"runner:{world.free}")
