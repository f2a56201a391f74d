"""Claims: what a worker may ask for, what it gets, and how much of it."""

import pytest
from django.db import connection

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.services import worker_state
from tests.api_client import Caller, refused
from tests.factories import OPERATOR, PoolFactory, WorkerFactory, demanding, submitted
from workers.models import Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db
LEASES = "/v1/runtime/leases"
OLD, NEW = "01KKYGMFJF4J9S26HZD0H93J0R", "01KKYGN4Z3FKEF0G4TGM6G3B1J"


@pytest.fixture
def job(organization):
    return submitted(organization.projects.get())


def body(worker, **changes):
    return {"worker_id": worker.worker_id} | changes


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("worker_id", value) for value in (None, 7, "", "x" * 65, [], True)],
        *[("pool", value) for value in (7, "", "a b", "A", [], "x" * 64, "shared-linux\n")],
        *[
            ("capabilities", value)
            for value in ("linux", ["linux"], {"linux": 1}, {"linux": "true"}, {"linux": None}, 7)
        ],
        ("capabilities", {f"c{n}": True for n in range(65)}),
        ("capabilities", {"x" * 64: True}),
        *[("labels", value) for value in ("gpu", {"gpu": True}, [1], [None], ["x" * 64], ["a"] * 10_000, 7)],
        *[("job_types", value) for value in ([], "runtime", [1], ["x" * 51], ["a"] * 17, None)],
        *[("wait_seconds", value) for value in (-1, 61, "5", True, None, 10**18, [])],
        *[("acknowledge", value) for value in (1, "true", None, [])],
    ],
)
def test_a_claim_out_of_bounds_is_refused_by_name(wendy, worker, job, field, value):
    errors = refused(lambda: wendy.post(LEASES, body(worker, **{field: value})), 400, "invalid")["errors"]
    assert any(name.split(".")[0] == field for name in errors)


@pytest.mark.parametrize("field", ["capacity", "org_slug", "job_id", "fence", "session", "isolation", "max_jobs"])
def test_what_a_claim_does_not_have_is_refused_by_name(wendy, worker, job, field):
    document = refused(lambda: wendy.post(LEASES, body(worker, **{field: 10**9})), 400, "unknown_field")
    assert document["errors"] == {field: ["Unknown field."]}


def test_a_worker_speaks_for_itself(wendy, job):
    other = WorkerFactory()
    for name in (other.worker_id, "wrk_01kkygmfjf4j9s26hzd0h93j0r", "x"):
        refused(lambda name=name: wendy.post(LEASES, {"worker_id": name}), 403, "worker_mismatch")


def test_a_worker_claims_in_its_own_pool(wendy, worker, job):
    PoolFactory(slug="gpu")
    for name in ("gpu", "no-such-pool"):
        refused(lambda name=name: wendy.post(LEASES, body(worker, pool=name)), 403, "pool_forbidden")


def test_a_label_that_is_not_registered_is_not_worn(wendy, worker, job):
    demanding(job, requirements=["linux", "gpu"])
    assert wendy.post(LEASES, body(worker, labels=["gpu"])).status_code == 204
    worker.labels = ["gpu"]
    worker.save()
    assert wendy.post(LEASES, body(worker, labels=[])).status_code == 204
    assert wendy.post(LEASES, body(worker, labels=["gpu", "more"])).status_code == 201


@pytest.mark.parametrize(
    "capabilities", [{}, {"linux": False, "namespaces": True}, {"linux": True}, {"linux": True, "restricted": True}]
)
def test_a_worker_that_cannot_run_it_does_not_get_it(wendy, worker, job, capabilities):
    assert wendy.post(LEASES, body(worker, capabilities=capabilities)).status_code == 204
    assert wendy.post(LEASES, body(worker)).status_code == 201, "as registered, it can"


def test_a_worker_that_understands_other_types_does_not_get_it(wendy, worker, job):
    assert wendy.post(LEASES, body(worker, job_types=["steps"])).status_code == 204
    assert wendy.post(LEASES, body(worker, job_types=["steps", "runtime"])).status_code == 201


@pytest.mark.parametrize("state", [WorkerState.DRAINING, WorkerState.MAINTENANCE])
def test_a_worker_that_drains_gets_nothing_new(wendy, worker, job, state):
    worker_state.set_worker_state(worker_id=worker.worker_id, state=state, cause=Cause(OPERATOR))
    assert wendy.post(LEASES, body(worker)).status_code == 204


@pytest.mark.parametrize(
    "sessions", [["", "", ""], [OLD, OLD, OLD], [OLD, "", ""], ["", OLD, ""], [NEW, "", NEW]], ids=str
)
def test_a_worker_never_holds_more_than_its_capacity(organization, sessions):
    worker = WorkerFactory(capacity=1)
    caller = Caller(worker.token)
    for _ in sessions:
        submitted(organization.projects.get())
    claims = [caller.post(LEASES, body(worker), **({"Worker-Session": name} if name else {})) for name in sessions]
    assert [answer.status_code for answer in claims] == [201, 204, 204]


def test_newer_sessions_add_no_capacity(organization):
    """The attack: a worker of capacity 8 held 20 leases by naming a newer session with each claim."""
    worker = WorkerFactory(capacity=8)
    caller = Caller(worker.token)
    for _ in range(20):
        submitted(organization.projects.get())
    sessions = [f"01KKYGKAG{number:017d}" for number in range(20)]
    claims = [caller.post(LEASES, body(worker), **{"Worker-Session": name}) for name in sessions]
    assert [answer.status_code for answer in claims] == [201] * 8 + [204] * 12
    assert Lease.objects.open().filter(worker=worker).count() == 8


def test_claims_of_many_add_no_capacity_with_a_newer_session(organization):
    worker = WorkerFactory(capacity=2)
    caller = Caller(worker.token)
    for _ in range(6):
        submitted(organization.projects.get())
    many = [caller.post(LEASES, body(worker, max_leases=4), **{"Worker-Session": name}) for name in (OLD, NEW)]
    assert [answer.status_code for answer in many] == [201, 204]
    assert len(many[0].json()["leases"]) == 2


class TestAReplacedProcess:
    """A lease of an older session, after the worker's newer process has claimed."""

    @pytest.fixture
    def lease(self, organization, wendy, worker):
        """The path of the older process's lease."""
        submitted(organization.projects.get())
        lease_id = wendy.post(LEASES, body(worker), **{"Worker-Session": OLD}).json()["lease_id"]
        assert wendy.post(f"{LEASES}/{lease_id}/heartbeat", **{"Worker-Session": OLD}).status_code == 200
        wendy.post(LEASES, body(worker), **{"Worker-Session": NEW})
        return f"{LEASES}/{lease_id}"

    @pytest.mark.parametrize("session", [OLD, NEW, ""], ids=["its own", "the newer one", "none"])
    @pytest.mark.parametrize(
        ("call", "sent"), [("acknowledge", {}), ("heartbeat", {}), ("report", {"phase": "executing"})]
    )
    def test_neither_acknowledges_nor_renews_nor_reports(self, wendy, lease, call, sent, session):
        headers = {"Worker-Session": session} if session else {}
        document = refused(lambda: wendy.post(f"{lease}/{call}", sent, **headers), 409, "stale_lease")
        assert document["reason"] == "lease_ended"

    @pytest.mark.parametrize("call", ["acknowledge", "heartbeat"])
    def test_nor_in_a_call_for_many(self, wendy, lease, call):
        sent = {"leases": [{"lease_id": lease.rpartition("/")[2]}]}
        [answer] = wendy.post(f"{LEASES}/{call}", sent, **{"Worker-Session": OLD}).json()["results"]
        assert (answer["status"], answer["error"]["code"]) == (409, "stale_lease")

    def test_delivers_the_end_of_its_job_and_of_its_log(self, wendy, lease):
        assert wendy.post(f"{lease}/logs", {"seq": 0, "chunk": "eA=="}).status_code == 200
        result = {"status": "failed", "reason": "worker_error"}
        assert wendy.post(f"{lease}/fail", {"result": result}).status_code == 200

    def test_gives_its_place_to_the_newer_one_when_its_lease_ends(self, organization, lease, wendy, worker):
        Worker.objects.update(capacity=1)
        submitted(organization.projects.get())
        claim = lambda: wendy.post(LEASES, body(worker), **{"Worker-Session": NEW}).status_code  # noqa: E731
        assert claim() == 204
        assert wendy.post(f"{lease}/release").status_code == 200
        assert claim() == 201


def test_a_lease_past_its_expiry_takes_no_place_before_any_sweep(organization, wendy, worker):
    Worker.objects.update(capacity=1)
    for _ in range(2):
        submitted(organization.projects.get())
    assert wendy.post(LEASES, body(worker), **{"Worker-Session": OLD}).status_code == 201
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runtime_worker_leases SET expires_at = clock_timestamp()")
    assert wendy.post(LEASES, body(worker), **{"Worker-Session": NEW}).status_code == 201


def test_what_is_claimed_without_a_session_counts_for_every_session(organization):
    worker = WorkerFactory(capacity=1)
    caller = Caller(worker.token)
    assert caller.post(LEASES, body(worker), **{"Worker-Session": OLD}).status_code == 204, "no work yet"
    for _ in range(3):
        submitted(organization.projects.get())
    assert [caller.post(LEASES, body(worker)).status_code for _ in range(3)] == [201, 204, 204]


def test_an_older_process_of_the_worker_learns_that_it_was_replaced(wendy, worker, job):
    assert wendy.post(LEASES, body(worker, job_types=["none"]), **{"Worker-Session": NEW}).status_code == 204
    document = refused(lambda: wendy.post(LEASES, body(worker), **{"Worker-Session": OLD}), 409, "stale_lease")
    assert document["reason"] == "lease_ended"


@pytest.mark.parametrize("session", ["x", "8" * 26, OLD + "0", OLD[:-1], OLD.replace("0", "U"), "é" * 26])
def test_a_session_is_a_ulid(wendy, worker, job, session):
    document = refused(lambda: wendy.post(LEASES, body(worker), **{"Worker-Session": session}), 400, "invalid")
    assert set(document["errors"]) == {"Worker-Session"}


def test_the_same_claim_again_gets_the_same_lease_and_another_one_a_conflict(wendy, worker, job, organization):
    submitted(organization.projects.get())
    key = {"Idempotency-Key": "claim-1"}
    first, again = wendy.post(LEASES, body(worker), **key), wendy.post(LEASES, body(worker), **key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json(), again.json()) == (again.json(), first.json())
    assert ("Idempotency-Replayed" in first, again["Idempotency-Replayed"]) == (False, "true")
    refused(lambda: wendy.post(LEASES, body(worker, acknowledge=True), **key), 409, "idempotency_conflict")
    assert Lease.objects.count() == 1
    wendy.post(f"{LEASES}/{first.json()['lease_id']}/release")
    later = wendy.post(LEASES, body(worker), **key)
    assert later.status_code == 201
    assert later.json()["lease_id"] != first.json()["lease_id"]


def test_a_promise_to_acknowledge_gives_the_short_window(wendy, worker, job):
    wendy.post(LEASES, body(worker, acknowledge=True))
    lease = Lease.objects.get()
    assert (lease.expires_at - lease.leased_at).total_seconds() == lease.acknowledge_within_seconds == 30
    assert wendy.post(f"{LEASES}/{lease.lease_ulid}/acknowledge").json() == {
        "job_id": job.job_ulid,
        "status": "running",
    }


def test_a_lease_says_where_the_job_may_go_only_if_it_may(wendy, worker, organization):
    organization.egress = ["registry.example"]
    organization.save()
    submitted(organization.projects.get(), allow_network=False)
    submitted(organization.projects.get(), allow_network=True)
    leased = [wendy.post(LEASES, body(worker)).json()["job"]["execution"]["egress"] for _ in range(2)]
    assert leased == [[], ["registry.example"]]
