"""Contract 2.1 to 2.8: runners, their keys, and the hardware specs that they provide."""

import importlib
import re
import threading

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import ProtectedError

from orchestrator.core.cause import Cause
from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.bencher.authentication import authenticate_runner
from orchestrator.services import claiming, heartbeat, worker_state
from runtime_jobs.errors import ResourceConflict
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import OperatorEvent
from tests.api_client import Caller
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    offer,
    personal_key,
    submitted,
)
from tests.orchestrator.protocols.bencher.conftest import ABSENT, make_server_admin, refused
from workers.models import Pool, Worker, WorkerSpec
from workers.registry.matching import offer_of, runner_offer, spec_labels
from workers.registry.models import PoolPolicy, WorkerState
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db
KEY = re.compile(r"bencher_runner_[0-9A-Za-z]{30}")


def events(action: str) -> list[OperatorEvent]:
    return list(OperatorEvent.objects.filter(action=action).order_by("pk"))


# --- 2.1 creation -----------------------------------------------------------------------------------------------------


def test_creation_returns_uuid_and_key_once(ada):
    response = ada.post("/v0/runners", {"name": "Rack 7"})
    assert response.status_code == 201
    document = response.json()
    assert set(document) == {"uuid", "key", "token"}
    assert document["key"] == document["token"]
    assert KEY.fullmatch(document["key"])
    assert len(document["key"]) == 45
    runner = Worker.objects.get()
    assert document["uuid"] == str(uuid_of(runner.worker_id))
    assert runner.digest == digest_of(document["key"])
    for path in ("/v0/runners", "/v0/runners/rack-7"):
        assert document["key"] not in ada.get(path).content.decode()


def test_a_runner_is_a_worker_of_the_runner_pool(ada):
    ada.post("/v0/runners", {"name": "Rack 7"})
    runner = Worker.objects.select_related("pool").get()
    assert (runner.name, runner.slug, runner.capacity, runner.capabilities) == ("Rack 7", "rack-7", 256, [])
    assert (runner.pool.slug, runner.state) == ("bare-metal", WorkerState.ACTIVE)


def test_the_pool_of_the_migration_has_a_strict_order():
    importlib.import_module("workers.migrations.0001_tables").create_pool(apps, None)
    pool = Pool.objects.get(slug="bare-metal")
    assert (pool.least_isolation, pool.aging, pool.policy) == ("none", False, PoolPolicy.FIFO)


def test_the_first_runner_creates_a_pool_of_another_name(ada, settings):
    settings.RUNNER_POOL = "metal"
    assert ada.post("/v0/runners", {"name": "a"}).status_code == 201
    pool = Pool.objects.get(slug="metal")
    assert (pool.least_isolation, pool.aging, pool.policy) == ("none", False, PoolPolicy.FIFO)


def test_the_slug_may_be_given(ada):
    assert ada.post("/v0/runners", {"name": "Rack 7", "slug": "other"}).status_code == 201
    assert Worker.objects.get().slug == "other"


@pytest.mark.parametrize("body", [{"name": "Rack 7"}, {"name": "x", "slug": "rack-7"}, {"name": "RACK-7"}])
def test_a_slug_that_is_taken_is_409(ada, runner, body):
    refused(lambda: ada.post("/v0/runners", body), 409)


def test_the_slug_of_a_worker_of_another_pool_is_taken(ada):
    WorkerFactory(slug="build-01")
    refused(lambda: ada.post("/v0/runners", {"name": "build 01"}), 409)


def test_a_slug_has_at_most_63_characters(ada):
    """Those of specs have 64. The column of all workers cannot grow while the processes of two releases read it."""
    assert ada.post("/v0/runners", {"name": "x" * 64}).status_code == 201
    assert Worker.objects.get().slug == "x" * 63
    assert ada.post("/v0/runners", {"name": "a", "slug": "y" * 63}).status_code == 201
    assert "63 characters" in refused(lambda: ada.post("/v0/runners", {"name": "a", "slug": "z" * 64}), 400)
    refused(lambda: ada.call("PATCH", f"/v0/runners/{'y' * 63}", {"slug": "z" * 64}), 400)


def test_names_are_not_unique(ada):
    assert ada.post("/v0/runners", {"name": "a", "slug": "a"}).status_code == 201
    assert ada.post("/v0/runners", {"name": "a", "slug": "b"}).status_code == 201


def test_creation_is_in_the_audit_log_without_the_key(ada):
    key = ada.post("/v0/runners", {"name": "Rack 7"}).json()["key"]
    (event,) = events("runner.created")
    assert (event.actor, event.target) == ("operator:ada", Worker.objects.get().worker_id)
    assert event.after == {"name": "Rack 7", "slug": "rack-7", "pool": "bare-metal"}
    assert key not in str(list(OperatorEvent.objects.values()))


# --- 2.2 and 2.3 reading ----------------------------------------------------------------------------------------------


def test_a_runner_has_these_members(ada):
    specs = [HardwareSpecFactory() for _ in range(2)]
    runner = RunnerFactory(slug="rack-7", name="Rack 7", specs=specs)
    document = ada.get("/v0/runners/rack-7").json()
    assert document == {
        "uuid": str(uuid_of(runner.worker_id)),
        "name": "Rack 7",
        "slug": "rack-7",
        "specs": [str(spec.uuid) for spec in specs],
        "archived": None,
        "last_heartbeat": None,
        "created": document["created"],
        "modified": document["modified"],
    }
    assert ada.get("/v0/runners").json() == [document]


def test_an_archived_runner_remains_readable(ada, runner):
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": True})
    assert ada.get("/v0/runners/rack-7").json()["archived"]
    assert ada.get("/v0/runners").json() == []


def test_a_list_costs_the_same_with_many_runners(ada, django_assert_num_queries):
    for _ in range(3):
        RunnerFactory(specs=[HardwareSpecFactory()])
    with django_assert_num_queries(6) as few:
        ada.get("/v0/runners")
    for _ in range(4):
        RunnerFactory(specs=[HardwareSpecFactory()])
    with django_assert_num_queries(len(few)):
        ada.get("/v0/runners")


# --- 2.4 changes ------------------------------------------------------------------------------------------------------


def test_renaming_leaves_the_slug(ada, runner):
    document = ada.call("PATCH", "/v0/runners/rack-7", {"name": "Rack 8"}).json()
    assert (document["name"], document["slug"]) == ("Rack 8", "rack-7")


def test_a_slug_may_change_unless_it_is_taken(ada, runner):
    RunnerFactory(slug="taken")
    refused(lambda: ada.call("PATCH", "/v0/runners/rack-7", {"slug": "taken"}), 409)
    assert ada.call("PATCH", "/v0/runners/rack-7", {"slug": "rack-7"}).status_code == 200
    assert ada.call("PATCH", "/v0/runners/rack-7", {"slug": "rack-8"}).json()["slug"] == "rack-8"
    assert ada.get("/v0/runners/rack-8").status_code == 200


def test_a_change_always_sets_modified(ada, runner):
    before = Worker.objects.get().modified_at
    ada.call("PATCH", "/v0/runners/rack-7", {})
    assert Worker.objects.get().modified_at > before


def test_archived_true_is_a_timestamp_and_false_is_null(ada, runner):
    assert ada.call("PATCH", "/v0/runners/rack-7", {"archived": True}).json()["archived"].endswith("Z")
    assert Worker.objects.get().state == WorkerState.ARCHIVED
    assert ada.call("PATCH", "/v0/runners/rack-7", {"archived": False}).json()["archived"] is None
    assert Worker.objects.get().state == WorkerState.ACTIVE


def test_archived_twice_is_archived_and_restored_twice_is_not(ada, runner):
    for archived in (True, True, False, False):
        assert bool(ada.call("PATCH", "/v0/runners/rack-7", {"archived": archived}).json()["archived"]) == archived


def test_restoring_a_runner_that_is_drained_leaves_it_drained(ada, runner):
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.DRAINING, cause=Cause(OPERATOR))
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": False})
    assert Worker.objects.get().state == WorkerState.DRAINING


@pytest.mark.parametrize("body", [{"archived": "yes"}, {"archived": 1}, {"name": ""}, {"slug": "A"}, {"name": 7}])
def test_a_bad_change_is_400(ada, runner, body):
    refused(lambda: ada.call("PATCH", "/v0/runners/rack-7", body), 400)


def test_there_is_no_deletion(ada, runner):
    refused(lambda: ada.call("DELETE", "/v0/runners/rack-7"), 405)


def test_each_change_is_in_the_audit_log(ada, runner):
    ada.call("PATCH", "/v0/runners/rack-7", {"name": "Rack 8", "archived": True})
    ada.call("PATCH", "/v0/runners/rack-7", {})
    (event,) = events("runner.changed")
    assert event.before == {"name": "Rack 7", "archived_at": None, "state": "active"}
    assert event.after == {"name": "Rack 8", "archived_at": event.after["archived_at"], "state": "archived"}


def test_a_revoked_runner_cannot_be_changed(ada, runner):
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    refused(lambda: ada.call("PATCH", "/v0/runners/rack-7", {"archived": False}), 409)
    refused(lambda: ada.post("/v0/runners/rack-7/key"), 409)
    assert ada.get("/v0/runners/rack-7").status_code == 200


def test_an_archived_runner_changes_its_state_by_nothing_else(ada, runner):
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": True})
    with pytest.raises(ResourceConflict, match="archived"):
        worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.ACTIVE, cause=Cause(OPERATOR))
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    assert Worker.objects.get().state == WorkerState.REVOKED


# --- 2.5 rotation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["key", "token"])
def test_rotation_returns_a_new_key_and_the_old_one_is_refused(ada, runner, name):
    response = ada.post(f"/v0/runners/rack-7/{name}", b"")
    assert response.status_code == 201
    document = response.json()
    assert set(document) == {"uuid", "key", "token"}
    assert document["uuid"] == str(runner.uuid)
    assert KEY.fullmatch(document["key"])
    assert document["key"] == document["token"]
    assert accepted(document["key"])
    assert not accepted(runner.token)


@pytest.mark.parametrize("body", [b"", b"{}", b"nonsense", b'{"x": 1}'])
def test_rotation_has_no_body(ada, runner, body):
    assert ada.post("/v0/runners/rack-7/key", body).status_code == 201


@pytest.mark.parametrize("name", ["key", "token"])
def test_rotation_of_an_archived_runner_is_409(ada, runner, name):
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": True})
    refused(lambda: ada.post(f"/v0/runners/rack-7/{name}"), 409)


def test_rotation_of_an_unknown_runner_is_404(ada):
    for ref in ("absent", ABSENT):
        refused(lambda ref=ref: ada.post(f"/v0/runners/{ref}/key"), 404)


def test_rotation_works_while_jobs_are_in_flight(ada, runner):
    job = held_job(runner)
    assert ada.post("/v0/runners/rack-7/key").status_code == 201
    job.refresh_from_db()
    assert job.state == "starting"


def test_rotation_is_in_the_audit_log_without_a_key(ada, runner):
    key = ada.post("/v0/runners/rack-7/key").json()["key"]
    (event,) = events("runner.key_rotated")
    assert (event.actor, event.target) == ("operator:ada", runner.worker_id)
    stored = str(list(OperatorEvent.objects.values()))
    assert key not in stored
    assert digest_of(key) not in stored


@pytest.mark.django_db(transaction=True)
def test_two_concurrent_rotations_return_two_keys_and_the_last_one_counts():
    admin_key = personal_key(make_server_admin())
    runner = RunnerFactory(slug="rack-7")
    answers = at_the_same_time(lambda: Caller(admin_key).post("/v0/runners/rack-7/key"))
    assert [answer.status_code for answer in answers] == [201, 201]
    keys = {answer.json()["key"] for answer in answers}
    assert len(keys) == 2
    assert len([key for key in keys if accepted(key)]) == 1
    assert not accepted(runner.token)


def at_the_same_time(call) -> list:
    """The results of two calls that two threads begin at once."""
    barrier, results = threading.Barrier(2), []

    def run():
        try:
            barrier.wait()
            results.append(call())
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def accepted(key: str, ref: str = "rack-7") -> bool:
    try:
        return authenticate_runner(f"Bearer {key}", ref).slug == "rack-7"
    except ApiError as error:
        if error.status != 401:
            raise
        return False


# --- 2.6 to 2.8 specs of a runner -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["uuid", "slug"])
def test_an_association_returns_the_spec(ada, runner, spec, by):
    ref = str(spec.uuid) if by == "uuid" else spec.slug
    response = ada.post("/v0/runners/rack-7/specs", {"spec": ref})
    assert response.status_code == 201
    assert response.json() == ada.get("/v0/specs/two-cores").json()
    assert ada.get("/v0/runners/rack-7/specs").json() == [response.json()]
    assert ada.get("/v0/runners/rack-7").json()["specs"] == [str(spec.uuid)]
    (event,) = events("runner.spec_added")
    assert event.after == {"spec": str(spec.uuid), "slug": "two-cores"}


def test_a_duplicate_association_is_409(ada, runner, spec):
    ada.post("/v0/runners/rack-7/specs", {"spec": spec.slug})
    refused(lambda: ada.post("/v0/runners/rack-7/specs", {"spec": str(spec.uuid)}), 409)


@pytest.mark.parametrize(
    ("ref", "status"), [("absent", 404), (ABSENT, 404), ("A b", 400), ("", 400), (7, 400), (None, 400)]
)
def test_an_association_with_no_spec_is_refused(ada, runner, ref, status):
    refused(lambda: ada.post("/v0/runners/rack-7/specs", {"spec": ref}), status)


def test_an_archived_spec_may_be_associated(ada, runner, spec):
    ada.call("PATCH", "/v0/specs/two-cores", {"archived": True})
    assert ada.post("/v0/runners/rack-7/specs", {"spec": spec.slug}).status_code == 201


def test_an_association_ends_with_204(ada, runner, spec):
    ada.post("/v0/runners/rack-7/specs", {"spec": spec.slug})
    response = ada.call("DELETE", "/v0/runners/rack-7/specs/two-cores")
    assert (response.status_code, response.content) == (204, b"")
    assert ada.get("/v0/runners/rack-7/specs").json() == []
    (event,) = events("runner.spec_removed")
    assert event.before == {"spec": str(spec.uuid), "slug": "two-cores"}
    refused(lambda: ada.call("DELETE", "/v0/runners/rack-7/specs/two-cores"), 404)


def test_what_was_never_associated_is_404(ada, runner, spec):
    for ref in ("two-cores", ABSENT, str(spec.uuid)):
        refused(lambda ref=ref: ada.call("DELETE", f"/v0/runners/rack-7/specs/{ref}"), 404)
    refused(lambda: ada.call("DELETE", "/v0/runners/absent/specs/two-cores"), 404)


@pytest.mark.django_db(transaction=True)
def test_two_concurrent_associations_are_one_and_one_409():
    admin_key = personal_key(make_server_admin())
    RunnerFactory(slug="rack-7")
    HardwareSpecFactory(slug="two-cores")
    answers = at_the_same_time(lambda: Caller(admin_key).post("/v0/runners/rack-7/specs", {"spec": "two-cores"}))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    assert WorkerSpec.objects.count() == 1


@pytest.fixture
def woken(monkeypatch):
    """The pools whose waiting claims are repeated: here and in other processes."""
    found = []
    monkeypatch.setattr("orchestrator.core.work_signals.wake", lambda pools: found.append(("here", pools)))
    monkeypatch.setattr("orchestrator.core.work_signals.announce", lambda pools: found.append(("elsewhere", pools)))
    return found


def test_an_association_wakes_the_waiting_claims_of_the_pool(ada, runner, spec, woken):
    ada.post("/v0/runners/rack-7/specs", {"spec": spec.slug})
    assert sorted(woken) == [("elsewhere", ["bare-metal"]), ("here", ["bare-metal"])]


def test_a_restored_runner_wakes_the_waiting_claims_of_the_pool(ada, runner, woken):
    for change in ({"name": "Other"}, {"archived": False}, {"archived": True}):
        ada.call("PATCH", "/v0/runners/rack-7", change)
        assert woken == []
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": False})
    assert sorted(woken) == [("elsewhere", ["bare-metal"]), ("here", ["bare-metal"])]


# --- what a claim offers ----------------------------------------------------------------------------------------------


def test_a_spec_is_a_label_that_is_read_anew(ada, runner, spec):
    assert spec_labels(runner) == []
    ada.post("/v0/runners/rack-7/specs", {"spec": spec.slug})
    assert spec_labels(runner) == [f"spec:{spec.uuid}"]
    ada.call("PATCH", "/v0/specs/two-cores", {"archived": True})
    assert spec_labels(runner) == [f"spec:{spec.uuid}"], "archived specs count"
    ada.call("DELETE", "/v0/runners/rack-7/specs/two-cores")
    assert spec_labels(runner) == []


def test_a_sandbox_asks_for_a_microvm_and_its_absence_for_nothing():
    plain, sandboxed = HardwareSpecFactory(), HardwareSpecFactory(sandbox="firecracker")
    assert (plain.least_isolation, sandboxed.least_isolation) == ("none", "microvm")
    assert runner_offer(RunnerFactory(specs=[plain])) == ([plain.label], "none")
    both = runner_offer(RunnerFactory(specs=[plain, sandboxed]))
    assert both == (sorted([plain.label, sandboxed.label]), "microvm")


def test_the_labels_are_read_by_one_query(runner, django_assert_num_queries):
    with django_assert_num_queries(1):
        runner_offer(runner)


def test_a_worker_of_ours_in_that_pool_offers_its_specs_too(spec):
    ours = RunnerFactory(specs=[spec], labels=["amd64"], capabilities=["linux"])
    assert offer_of(ours, labels=None, capabilities=None) == (frozenset({"amd64", "linux", spec.label}), "none")
    assert offer_of(ours, labels=[], capabilities={"microvm": True}) == (frozenset({"microvm", spec.label}), "microvm")
    elsewhere = WorkerFactory(capabilities=[])
    WorkerSpec.objects.create(worker=elsewhere, spec=spec)
    assert offer_of(elsewhere, labels=None, capabilities=None) == (frozenset(), "none")


def held_job(runner):
    """A job of the runner's pool on a lease of the runner."""
    job = submitted(ProjectFactory(pool=runner.pool.slug))
    return claimed_by(runner, job)


def claimed_by(runner, job):
    offers = frozenset(job.requirements)
    found = claiming.claim(worker=runner, offer=offer(runner, offers=offers))
    assert found is not None
    assert found.job.pk == job.pk
    return job


def test_an_archived_runner_gets_no_job_and_what_executes_goes_its_way(ada, runner):
    """Also over a connection that was open before: the claim reads the state."""
    job = held_job(runner)
    waiting = submitted(ProjectFactory(pool=runner.pool.slug))
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": True})
    assert claiming.claim(worker=runner, offer=offer(runner, offers=frozenset(waiting.requirements))) is None
    lease = job.leases.get()
    heartbeat.renew(lease_ulid=lease.lease_ulid, worker=runner)
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": False})
    claimed_by(runner, waiting)


def test_a_runner_that_held_a_lease_cannot_be_deleted(runner):
    held_job(runner)
    with pytest.raises(ProtectedError):
        Worker.objects.get(pk=runner.pk).delete()
    with pytest.raises(ProtectedError):
        Worker.objects.filter(pk=runner.pk).delete()
    assert Worker.objects.filter(pk=runner.pk).exists()


@pytest.mark.parametrize("name", ["Ω", "!!!", "ラック"])
def test_a_name_without_ascii_letters_has_a_random_slug(ada, name):
    assert ada.post("/v0/runners", {"name": name}).status_code == 201
    (document,) = ada.get("/v0/runners").json()
    assert document["name"] == name
    assert re.fullmatch("[0-9a-z]{8}", document["slug"])
