"""Contract 2.9: hardware specs, the one fallback, archived specs, deletion."""

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from orchestrator.services import cancellation, hardware_specs
from runtime_jobs.models import Job, OperatorEvent
from tests.api_client import Caller
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    ProjectFactory,
    RunnerFactory,
    demanding,
    personal_key,
    submitted,
)
from tests.orchestrator.protocols.bencher.conftest import make_server_admin, refused
from tests.orchestrator.protocols.bencher.test_runners import at_the_same_time
from workers.models import HardwareSpec, WorkerSpec
from workers.registry.models import spec_archived

pytestmark = pytest.mark.django_db
NEW = {"name": "Two cores", "os": "linux", "architecture": "x86_64", "cpu": 2, "memory": 4 << 30, "disk": 10 << 30}


def fallbacks() -> list[str]:
    return list(HardwareSpec.objects.filter(fallback_at__isnull=False).values_list("slug", flat=True))


# --- creation ---------------------------------------------------------------------------------------------------------


def test_a_spec_has_these_members(ada):
    response = ada.post("/v0/specs", NEW)
    assert response.status_code == 201
    document = response.json()
    assert document == {
        "uuid": document["uuid"],
        "name": "Two cores",
        "slug": "two-cores",
        "os": "linux",
        "architecture": "x86_64",
        "sandbox": None,
        "cpu": 2,
        "memory": 4 << 30,
        "disk": 10 << 30,
        "network": False,
        "fallback": None,
        "created": document["created"],
        "modified": document["created"],
        "archived": None,
    }
    assert ada.get("/v0/specs").json() == [document] == [ada.get(f"/v0/specs/{document['uuid']}").json()]


@pytest.mark.parametrize(
    "change",
    [
        {"os": "macos"},
        {"os": "windows"},
        {"architecture": "aarch64"},
        {"sandbox": "firecracker"},
        {"sandbox": None},
        {"network": True},
        {"cpu": 1},
        {"cpu": 2**31 - 1},
        {"memory": 1},
        {"memory": 2**63 - 1},
        {"disk": 2**63 - 1},
        {"slug": "other"},
    ],
)
def test_values_within_their_limits_are_accepted(ada, change):
    document = ada.post("/v0/specs", NEW | change).json()
    assert {name: document[name] for name in change} == change


@pytest.mark.parametrize("name", ["slug", "sandbox", "network", "fallback"])
def test_an_optional_value_that_is_null_is_absent(ada, name):
    given, expected = (ada.post("/v0/specs", body).json() for body in (NEW | {name: None}, NEW))
    assert given[name] == expected[name] or name == "slug"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("os", value) for value in ("Linux", "", "bsd", 1, None)),
        *(("architecture", value) for value in ("amd64", "X86_64", None)),
        *(("sandbox", value) for value in ("docker", "", 1)),
        *(("cpu", value) for value in (0, -1, 2**31, 1.0, "2", True, None)),
        *((name, value) for name in ("memory", "disk") for value in (0, -1, 2**63, 1.5, "4", True, None)),
        *((name, value) for name in ("network", "fallback") for value in ("true", 1, 0)),
        *(("name", value) for value in ("", " a", "x" * 65, 7, None)),
    ],
)
def test_a_value_outside_of_its_limits_is_400_and_named(ada, name, value):
    assert name in refused(lambda: ada.post("/v0/specs", NEW | {name: value}), 400)


@pytest.mark.parametrize("name", ["name", "os", "architecture", "cpu", "memory", "disk"])
def test_a_required_value_that_is_absent_is_400_and_named(ada, name):
    body = {key: value for key, value in NEW.items() if key != name}
    assert f"{name}: " in refused(lambda: ada.post("/v0/specs", body), 400)


@pytest.mark.parametrize("body", [NEW, NEW | {"name": "x", "slug": "two-cores"}])
def test_a_slug_that_is_taken_gets_a_suffix_of_8_characters(ada, spec, body):
    slug = ada.post("/v0/specs", body).json()["slug"]
    stem, _, suffix = slug.rpartition("-")
    assert (stem, len(suffix)) == ("two-cores", 8)


# --- fallback ---------------------------------------------------------------------------------------------------------


def test_a_new_fallback_clears_the_other_one(ada):
    for slug in ("a", "b"):
        document = ada.post("/v0/specs", NEW | {"slug": slug, "fallback": True}).json()
        assert document["fallback"] == document["created"]
        assert fallbacks() == [slug]
    assert {event.target for event in OperatorEvent.objects.filter(action="spec.changed")} == {
        f"spec:{HardwareSpec.objects.get(slug='a').uuid}"
    }


def test_a_change_to_the_fallback_clears_the_other_one_even_if_it_is_archived(ada, spec):
    old = HardwareSpecFactory(slug="old")
    ada.call("PATCH", "/v0/specs/old", {"archived": True})
    ada.call("PATCH", "/v0/specs/old", {"fallback": True})
    assert fallbacks() == ["old"]
    ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True})
    assert fallbacks() == ["two-cores"]
    old.refresh_from_db()
    assert old.archived_at is not None


def test_fallback_is_idempotent(ada, spec):
    first = ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True}).json()["fallback"]
    assert first
    assert ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True}).json()["fallback"] == first
    for _ in range(2):
        assert ada.call("PATCH", "/v0/specs/two-cores", {"fallback": False}).json()["fallback"] is None


def test_a_change_of_the_name_leaves_fallback_and_slug(ada, spec):
    before = ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True}).json()
    after = ada.call("PATCH", "/v0/specs/two-cores", {"name": "Other"}).json()
    assert after | {"modified": 0} == before | {"name": "Other", "modified": 0}


def test_there_is_one_fallback_at_most_in_the_database(ada, spec):
    ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True})
    other = HardwareSpecFactory()
    spec.refresh_from_db()
    with pytest.raises(IntegrityError, match="hardwarespec_one_fallback"), transaction.atomic():
        HardwareSpec.objects.filter(pk=other.pk).update(fallback_at=spec.fallback_at)


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_fallbacks_one_remains():
    admin_key = personal_key(make_server_admin())
    answers = at_the_same_time(lambda: Caller(admin_key).post("/v0/specs", NEW | {"fallback": True}))
    assert [answer.status_code for answer in answers] == [201, 201]
    assert len(fallbacks()) == 1
    assert HardwareSpec.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_changes_to_the_fallback_one_remains():
    admin_key = personal_key(make_server_admin())
    slugs = iter([HardwareSpecFactory().slug, HardwareSpecFactory().slug])
    HardwareSpecFactory(slug="first")
    Caller(admin_key).call("PATCH", "/v0/specs/first", {"fallback": True})
    answers = at_the_same_time(lambda: Caller(admin_key).call("PATCH", f"/v0/specs/{next(slugs)}", {"fallback": True}))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(fallbacks()) == 1


# --- archived ---------------------------------------------------------------------------------------------------------


def test_archiving_clears_the_fallback_and_restoring_does_not_bring_it_back(ada, spec):
    ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True})
    archived = ada.call("PATCH", "/v0/specs/two-cores", {"archived": True}).json()
    assert archived["archived"]
    assert archived["fallback"] is None
    restored = ada.call("PATCH", "/v0/specs/two-cores", {"archived": False}).json()
    assert (restored["archived"], restored["fallback"]) == (None, None)


def test_archiving_wins_over_fallback_and_leaves_the_other_fallback(ada, spec):
    HardwareSpecFactory(slug="other")
    ada.call("PATCH", "/v0/specs/other", {"fallback": True})
    document = ada.call("PATCH", "/v0/specs/two-cores", {"archived": True, "fallback": True}).json()
    assert document["archived"]
    assert document["fallback"] is None
    assert fallbacks() == ["other"]


def test_restoring_with_fallback_makes_the_fallback(ada, spec):
    ada.call("PATCH", "/v0/specs/two-cores", {"archived": True})
    document = ada.call("PATCH", "/v0/specs/two-cores", {"archived": False, "fallback": True}).json()
    assert (document["archived"], bool(document["fallback"])) == (None, True)


def test_archiving_sends_a_signal_in_its_transaction(ada, spec):
    received = []

    def receive(sender, spec, now, **_):
        received.append((sender, spec.slug, spec.archived_at == now, transaction.get_connection().in_atomic_block))

    spec_archived.connect(receive)
    try:
        ada.call("PATCH", "/v0/specs/two-cores", {"archived": True})
        ada.call("PATCH", "/v0/specs/two-cores", {"archived": False})
    finally:
        spec_archived.disconnect(receive)
    assert received == [(HardwareSpec, "two-cores", True, True)]


def test_an_archived_spec_remains_readable(ada, spec):
    ada.call("PATCH", "/v0/specs/two-cores", {"archived": True})
    assert ada.get("/v0/specs/two-cores").status_code == 200
    assert ada.get("/v0/specs").json() == []


def test_the_slug_of_another_spec_is_409(ada, spec):
    HardwareSpecFactory(slug="taken")
    refused(lambda: ada.call("PATCH", "/v0/specs/two-cores", {"slug": "taken"}), 409)


def test_hardware_never_changes(ada, spec):
    document = ada.call("PATCH", "/v0/specs/two-cores", {"cpu": 99, "os": "windows", "sandbox": "firecracker"}).json()
    assert (document["cpu"], document["os"], document["sandbox"]) == (2, "linux", None)


@pytest.mark.parametrize("body", [{"fallback": 1}, {"archived": "true"}, {"name": ""}, {"slug": "a_b"}])
def test_a_bad_change_is_400(ada, spec, body):
    refused(lambda: ada.call("PATCH", "/v0/specs/two-cores", body), 400)


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deletion_is_204(ada, spec):
    response = ada.call("DELETE", "/v0/specs/two-cores")
    assert (response.status_code, response.content) == (204, b"")
    refused(lambda: ada.call("DELETE", "/v0/specs/two-cores"), 404)
    assert OperatorEvent.objects.filter(action="spec.deleted", target=f"spec:{spec.uuid}").exists()


def test_a_spec_of_a_runner_cannot_be_deleted(ada, spec):
    runner = RunnerFactory(specs=[spec])
    refused(lambda: ada.call("DELETE", "/v0/specs/two-cores"), 409)
    WorkerSpec.objects.filter(worker=runner).delete()
    assert ada.call("DELETE", "/v0/specs/two-cores").status_code == 204


@pytest.mark.parametrize("state", ["queued", "final"])
def test_a_spec_of_a_job_cannot_be_deleted(ada, spec, state):
    job = submitted(ProjectFactory(pool="bare-metal"))
    demanding(job, requirements=[spec.label])
    Job.objects.filter(pk=job.pk).update(job_type="oci", spec={"spec": str(spec.uuid)})
    if state == "final":
        cancellation.cancel(job_ulid=job.job_ulid, actor=OPERATOR, deadline_seconds=1)
    refused(lambda: ada.call("DELETE", "/v0/specs/two-cores"), 409)
    HardwareSpecFactory(slug="other")
    assert ada.call("DELETE", "/v0/specs/other").status_code == 204


def test_jobs_of_a_spec_are_found_by_an_index(spec):
    """Without it the deletion of a spec reads all jobs, and ends at the statement timeout."""
    with CaptureQueriesContext(connection) as captured:
        assert not hardware_specs._has_jobs(spec)
    with connection.cursor() as cursor:
        # In a table with few rows another index costs as little. tests/runtime_jobs/test_indexes.py has many rows.
        cursor.execute("DROP INDEX jobs_of_type_by_key")
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {captured.captured_queries[0]['sql']}")
        plan = " ".join(row[0] for row in cursor.fetchall())
    assert "jobs_of_hardware_spec" in plan
    assert "Filter" not in plan


def test_deleting_the_fallback_promotes_no_other(ada, spec):
    HardwareSpecFactory(slug="other")
    ada.call("PATCH", "/v0/specs/two-cores", {"fallback": True})
    assert ada.call("DELETE", "/v0/specs/two-cores").status_code == 204
    assert fallbacks() == []


def test_each_change_is_in_the_audit_log(ada):
    uuid = ada.post("/v0/specs", NEW).json()["uuid"]
    ada.call("PATCH", f"/v0/specs/{uuid}", {"name": "Other", "archived": True})
    ada.call("PATCH", f"/v0/specs/{uuid}", {})
    created, changed = OperatorEvent.objects.filter(action__startswith="spec.").order_by("pk")
    assert (created.actor, created.target) == ("operator:ada", f"spec:{uuid}")
    assert created.after["memory"] == 4 << 30
    assert (changed.before, set(changed.after)) == (
        {"name": "Two cores", "archived_at": None},
        {"name", "archived_at"},
    )
