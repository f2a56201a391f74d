"""A call that runs in a group has the answer that it has by itself, and the group the effects of its calls."""

import io
import re
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from leases.errors import WorkerLocked
from leases.models import Lease
from leases.scheduling.claims import ClaimResult
from orchestrator.http.asgi.sync_handler import ScopeHeaders
from orchestrator.http.auth import authentication
from orchestrator.http.auth.bad_credentials import FailedAuthThrottle
from orchestrator.http.fast_path import FastCall, FastPath
from orchestrator.protocols.native.fast_routes import ROUTES
from orchestrator.services import batch_calls, bulk_submit, claiming
from runtime_jobs.models import IdempotencyKey, Job
from tests.factories import (
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
)
from tests.orchestrator.http.both_paths import normalized, with_length
from tests.orchestrator.http.test_fast_path import (
    JOBS,
    LEASES,
    UPLOADED,
    post,
    refused_requests,
    valid_requests,
    world,
)

__all__ = ["world"]  # a fixture
PATH = FastPath(ROUTES)
COMBINED = re.compile(rf"/v1/(runtime/)?jobs|{LEASES}(/rtl_[a-z0-9]+/(acknowledge|heartbeat|complete|fail))?")


@pytest.fixture(autouse=True)
def _calm(monkeypatch):
    monkeypatch.setattr(authentication, "refusals", FailedAuthThrottle(clock=lambda: 30.0))


@pytest.fixture
def others(world):
    """A call of another tenant, or of another worker, for each route."""
    project = ProjectFactory(organization=OrganizationFactory(slug="neighbours"), slug="theirs")
    world.tokens["neighbour"] = api_token(project.organization)
    for _ in range(4):
        submitted(project)
    worker = WorkerFactory(slug="companion")
    world.tokens["companion"] = worker.token
    lease = f"{LEASES}/{claimed(worker).lease.lease_ulid}"
    theirs = {"org_slug": "neighbours", "project_slug": "theirs"}
    calls = {
        JOBS: post(world, JOBS, SUBMIT_BODY | theirs, "neighbour"),
        "/v1/jobs": post(world, "/v1/jobs", SUBMIT_ANY_BODY | theirs, "neighbour"),
        LEASES: post(world, LEASES, {"worker_id": worker.worker_id}, "companion"),
    }
    bodies = {
        "acknowledge": {},
        "heartbeat": {"phase": "executing"},
        "complete": {"result": UPLOADED["result"] | {"ingest_run_id": "theirs"}},
    }
    bodies["fail"] = {"result": {"status": "failed", "reason": "out_of_memory", "exit_code": 137}}
    return calls | {kind: post(world, f"{lease}/{kind}", body, "companion") for kind, body in bodies.items()}


def together(*requests):
    """Return the responses to these requests as a server gives them: those that do not fit follow by themselves."""
    calls = [call_of(sent) for sent in requests]
    responses = PATH.answer(calls, in_group=True)
    for place, call in enumerate(calls):
        if call.is_left_out:
            (responses[place],) = PATH.answer([call_of(requests[place])])
    return responses


def answered(*requests):
    """Execute these requests as one group, undo what they did, and return status, headers and body of each."""
    savepoint = transaction.savepoint()
    try:
        responses = together(*requests)
    finally:
        transaction.savepoint_rollback(savepoint)
    return [
        (
            found.status,
            sorted((name, normalized(value)) for name, value in found.headers),
            normalized(found.body.decode()),
        )
        for found in responses
    ]


def call_of(sent):
    headers = ScopeHeaders({name.lower().encode(): value.encode("latin-1") for name, value in with_length(sent)})
    request = PATH.match(sent.path, headers, size=len(sent.body), peer=sent.peer, scheme=sent.scheme)
    assert request is not None
    return FastCall(request, io.BytesIO(sent.body))


def other_of(others, path):
    return others.get(path) or others[path.rpartition("/")[2]]


@pytest.mark.parametrize("requests", [valid_requests, refused_requests])
def test_a_call_in_a_group_has_the_answer_that_it_has_by_itself(world, others, requests):
    cases = {name: sent for name, sent in requests(world).items() if COMBINED.fullmatch(sent.path)}
    assert len(cases) > 10
    for name, sent in cases.items():
        (alone,) = answered(sent)
        other = other_of(others, sent.path)
        (expected,) = answered(other)
        assert expected[0] < 300
        if sent.path != LEASES:  # of two claims only one gets the oldest job
            assert answered(other, sent) == [expected, alone], name
        found = answered(sent, other)
        assert found[0] == alone, name
        assert found[1][0] in {expected[0], 204}, name


def test_the_same_call_twice_in_a_group_has_one_effect(world):
    key = post(world, JOBS, SUBMIT_BODY, "alice", Idempotency_Key="twice")
    first, second = together(key, key)
    assert (first.status, second.status, first.body) == (201, 201, second.body)
    assert ("Idempotency-Replayed", "true") in second.headers
    done = post(world, f"{LEASES}/{world.held}/complete", UPLOADED)
    first, second = together(done, done)
    assert (first.status, first.body) == (200, second.body)
    other = post(world, f"{LEASES}/{world.held}/complete", {"result": UPLOADED["result"] | {"ingest_run_id": "run-3"}})
    assert [found.status for found in together(done, other)] == [200, 409]


def test_two_claims_of_one_worker_in_a_group_respect_its_capacity(world):
    worker = WorkerFactory(slug="small", capacity=1)
    world.tokens["small"] = worker.token
    claim = post(world, LEASES, {"worker_id": worker.worker_id}, "small")
    submitted(), submitted()
    assert sorted(found.status for found in together(claim, claim)) == [201, 204]
    assert Lease.objects.open().filter(worker=worker).count() == 1


def test_final_messages_of_a_group_claim_the_next_jobs_and_their_repetitions_claim_nothing(world, settings):
    settings.INGEST_URL = "https://ingest.example"
    calls = []
    for number in range(3):
        submitted(), submitted()
        worker = WorkerFactory(slug=f"next-{number}", capacity=1)
        world.tokens[worker.slug] = worker.token
        lease = claimed(worker).lease.lease_ulid
        result = {"status": "uploaded", "ingest_run_id": f"next-{number}", "exit_code": 0}
        body = {"result": result, "claim_next": {"worker_id": worker.worker_id}}
        calls.append(post(world, f"{LEASES}/{lease}/complete", body, worker.slug))
    first = [found.body for found in together(*calls)]
    assert all(b'"next_lease":{"lease_id"' in body for body in first)
    assert len({re.search(rb'next_lease":{"lease_id":"(rtl_\w+)', body)[1] for body in first}) == 3
    assert [found.body for found in together(*calls)] == first
    assert [PATH.answer([call_of(sent)])[0].body for sent in calls] == first, "and of one by itself"


def test_a_group_costs_as_many_statements_as_a_few_calls(world):
    """Of five callers, whose tokens are read by one statement."""
    for number in range(5):
        project = ProjectFactory(organization=OrganizationFactory(slug=f"org-{number}"), slug="p")
        world.tokens[f"org-{number}"] = api_token(project.organization)
        submitted(project)
    costs = {}
    for size in (2, 5):
        bodies = [SUBMIT_BODY | {"org_slug": f"org-{number}", "project_slug": "p"} for number in range(size)]
        calls = [post(world, JOBS, body, f"org-{n}", Idempotency_Key=f"k{size}") for n, body in enumerate(bodies)]
        with CaptureQueriesContext(connection) as captured:
            assert {found.status for found in together(*calls)} == {201}
        costs[size] = len(captured)
    assert costs[2] == costs[5]
    assert IdempotencyKey.objects.count() == 7


@pytest.mark.parametrize("kind", ["submit", "heartbeat"])
def test_a_call_that_breaks_its_group_is_answered_500_and_the_others_run_by_themselves(
    world, others, monkeypatch, kind
):
    poisoned = post(world, JOBS, SUBMIT_BODY, "alice") if kind == "submit" else None
    poisoned = poisoned or post(world, f"{LEASES}/{world.held}/heartbeat", {})
    other = other_of(others, poisoned.path)
    name = "new_job" if kind == "submit" else "renew_lease"
    module = bulk_submit if kind == "submit" else batch_calls
    original = getattr(module, name)

    def fails(*args, **kwargs):
        subject = args[0] if kind == "submit" else args[1].job
        if subject.org_slug != "neighbours":
            raise RuntimeError("on purpose")
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, fails)
    if kind == "submit":
        monkeypatch.setattr("orchestrator.services.submission.new_job", fails)
    jobs = Job.objects.count()
    first, second = together(poisoned, other)
    assert (first.status, second.status) == (500, 201 if kind == "submit" else 200)
    assert b"neighbours" not in first.body, "the error of one names nothing of another"
    assert Job.objects.count() == jobs + (kind == "submit")


def test_a_group_without_a_database_is_refused_once(world, others, monkeypatch):
    tried = []

    def unavailable(messages, **_):
        tried.append(len(messages))
        raise OperationalError("connection failed")  # without an SQLSTATE: there is no server

    monkeypatch.setattr(batch_calls, "renew_many", unavailable)
    beat = post(world, f"{LEASES}/{world.held}/heartbeat", {})
    found = together(beat, others["heartbeat"])
    assert [response.status for response in found] == [503, 503]
    assert tried == [2]


def test_a_lock_of_one_job_makes_no_other_call_busy(world, others, monkeypatch):
    """The group ends with the lock timeout, and then each call runs by itself."""
    renew = batch_calls.renew_many

    def locked(messages, **terms):
        if world.held in messages:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'locked' USING ERRCODE = '55P03'; END $$")
        return renew(messages, **terms)

    monkeypatch.setattr(batch_calls, "renew_many", locked)
    beat = post(world, f"{LEASES}/{world.held}/heartbeat", {})
    found = together(beat, others["heartbeat"])
    assert [response.status for response in found] == [503, 200]


def test_what_takes_long_or_must_follow_another_call_is_left_out_of_a_group(world, others):
    worker = WorkerFactory(slug="twice")
    world.tokens["twice"] = worker.token
    claim = post(world, LEASES, {"worker_id": worker.worker_id}, "twice")
    keyed = post(world, LEASES, {"worker_id": worker.worker_id}, "twice", Idempotency_Key="k")
    beat = post(world, f"{LEASES}/{world.held}/heartbeat", {})
    serial = post(world, JOBS, SUBMIT_BODY | {"concurrency": {"key": "deploy", "when_busy": "cancel_older"}}, "alice")
    for sent, expected in (
        ([claim, others[LEASES], claim], [False, False, True]),
        ([keyed], [True]),
        ([beat, others["heartbeat"], beat], [False, False, True]),
        ([serial, others[JOBS]], [True, False]),
    ):
        calls = [call_of(one) for one in sent]
        found = PATH.answer(calls, in_group=True)
        assert [call.is_left_out for call in calls] == [response is None for response in found] == expected
        (alone,) = PATH.answer([call_of(next(one for one, out in zip(sent, expected, strict=True) if out))])
        assert alone.status < 300


def test_a_claim_whose_worker_is_locked_follows_by_itself(world, others, monkeypatch):
    submitted()
    worker = WorkerFactory(slug="locked")
    world.tokens["locked"] = worker.token
    sent = [post(world, LEASES, {"worker_id": worker.worker_id}, "locked"), others[LEASES]]
    original = claiming.claim_for_each

    def locked(claimants, *args, **terms):
        results = original(claimants[1:] or claimants, *args, **terms)
        return results if len(claimants) == 1 else [ClaimResult([], refusal=WorkerLocked()), *results]

    monkeypatch.setattr(claiming, "claim_for_each", locked)
    calls = [call_of(one) for one in sent]
    left_out, answer = PATH.answer(calls, in_group=True)
    assert (left_out, answer.status, [call.is_left_out for call in calls]) == (None, 201, [True, False])
    (alone,) = PATH.answer([call_of(sent[0])])
    assert alone.status == 201


def test_an_error_of_a_claim_costs_no_other_worker_its_lease(world, monkeypatch):
    """A has a lease when B's repetition fails, and a statement for several is repeated for each of them."""
    submitted(), submitted()
    workers = [WorkerFactory(slug=f"claims-{number}") for number in range(3)]
    for worker in workers:
        world.tokens[worker.slug] = worker.token
    claims = [post(world, LEASES, {"worker_id": worker.worker_id}, worker.slug) for worker in workers]
    original, sizes = claiming.claim_for_each, []

    def busy(claimants, *args, **terms):
        sizes.append(len(claimants))
        if len(claimants) > 1 or claimants[0].worker.pk == workers[2].pk:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'locked' USING ERRCODE = '55P03'; END $$")
        return original(claimants, *args, **terms)

    monkeypatch.setattr(claiming, "claim_for_each", busy)
    found = together(*claims)
    assert [response.status for response in found] == [201, 201, 503]
    assert sizes == [3, 1, 1, 1]

    def inconclusive(claimants, *args, **terms):
        results = original(claimants, *args, **terms)
        if len(claimants) == 1:
            raise RuntimeError("on purpose")
        return [results[0], *(ClaimResult([], again=True) for _ in claimants[1:])]

    monkeypatch.setattr(claiming, "claim_for_each", inconclusive)
    submitted()
    found = together(*claims[:2])
    assert [response.status for response in found] == [201, 500]


def test_a_client_that_has_disconnected_is_left_out(world, others):
    gone = call_of(post(world, JOBS, SUBMIT_BODY, "alice"))
    gone.is_disconnected = SimpleNamespace(done=lambda: True).done
    jobs = Job.objects.count()
    first, second = PATH.answer([gone, call_of(others[JOBS])])
    assert (first, second.status) == (None, 201)
    assert Job.objects.count() == jobs + 1
