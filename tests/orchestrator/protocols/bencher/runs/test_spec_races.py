"""A run and the archiving or deletion of its hardware spec at the same time: one waits for the other."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from django.db import connection
from django.utils import timezone

from orchestrator.core.cause import Cause
from orchestrator.protocols.bencher.runs import operation
from orchestrator.results.models import Report, Testbed
from orchestrator.services import hardware_specs
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import Job
from tests.factories import OPERATOR
from tests.orchestrator.protocols.bencher.runs.world import BMF, job_body, new_person, new_project, new_spec, post_run
from tests.orchestrator.services.test_races import together
from workers.models import HardwareSpec

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mia():
    """A member. The organization has its submit quota already: a transaction that has to count it is repeated."""
    person = new_person("mia", new_project("adapter").organization)
    new_spec("Earlier")
    assert post_run(person.caller, job_body(spec="earlier") | {"testbed": "Earlier"}).status_code == 201
    return person.caller


def elsewhere(call):
    """Begin the call in another thread. Returns its future, which waits for the locks of this one's transaction."""

    def run():
        try:
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(60)


def archive(spec: HardwareSpec) -> HardwareSpec:
    return hardware_specs.change_spec(spec_uuid=spec.uuid, archived=True, cause=Cause(OPERATOR))


def delete(spec: HardwareSpec) -> None:
    hardware_specs.delete_spec(spec_uuid=spec.uuid, cause=Cause(OPERATOR))


@pytest.mark.parametrize("change", [archive, delete])
@pytest.mark.parametrize("named", [True, False])
def test_a_spec_that_ends_between_the_read_and_the_lock_gets_no_job(mia, monkeypatch, change, named):
    """The fallback is then another spec, which the run takes; a spec that it names is 404."""
    spec = new_spec(fallback_at=timezone.now())
    original, changed = hardware_specs.lock_active, []

    def lock(found):
        if not changed:
            changed.append(found)
            elsewhere(lambda: change(spec))
            elsewhere(lambda: new_spec("Other", fallback_at=timezone.now()))
        return original(found)

    monkeypatch.setattr(operation, "lock_active", lock)
    answer = post_run(mia, job_body(spec="two-cores") if named else job_body())
    if named:
        assert (answer.status_code, Job.objects.count(), Report.objects.count()) == (404, 1, 1)
    else:
        assert answer.status_code == 201, answer.content
        assert Report.objects.latest("id").spec.slug == "other"
        assert Testbed.objects.latest("id").spec.slug == "other"


def test_the_archive_of_a_spec_waits_for_a_run_that_has_it(mia, monkeypatch):
    """Else the run would attach the spec to its testbed again, and submit a job of an archived spec."""
    spec = new_spec()
    original, archived = operation._use_testbed, []

    def archive_and_disconnect():
        try:
            archive(spec)
        finally:
            connection.close()

    def use(*arguments):
        archived.append(pool.submit(archive_and_disconnect))
        wait(archived, timeout=1)  # without the lock it ends meanwhile
        original(*arguments)
        assert HardwareSpec.objects.get(pk=spec.pk).archived_at is None

    monkeypatch.setattr(operation, "_use_testbed", use)
    with ThreadPoolExecutor() as pool:
        answer = post_run(mia, job_body(spec="two-cores") | {"testbed": "Machine"})
    assert answer.status_code == 201, answer.content
    assert [future.result() for future in archived], "it was called, and raised nothing"
    assert HardwareSpec.objects.get(pk=spec.pk).archived_at is not None
    assert Testbed.objects.get(name="Machine").spec is None, "archiving came second, and cleared the testbed of the run"


def test_a_run_without_a_job_does_not_attach_a_spec_again_that_was_archived_meanwhile(mia, monkeypatch):
    spec = new_spec()
    assert post_run(mia, job_body(spec="two-cores") | {"testbed": "Machine"}).status_code == 201
    Testbed.objects.filter(name="Machine").update(archived_at=timezone.now())
    original = operation._use_testbed

    def use(*arguments):
        elsewhere(lambda: archive(spec))
        original(*arguments)

    monkeypatch.setattr(operation, "_use_testbed", use)
    body = {"project": "adapter", "branch": "main", "testbed": "Machine", "results": [BMF]}
    times = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:00Z"}
    assert post_run(mia, body | times).status_code == 201
    found = Testbed.objects.get(name="Machine")
    assert (found.spec, found.archived_at) == (None, None)


def test_runs_archive_and_new_testbeds_do_not_wait_for_each_other_in_a_circle(mia):
    """All of them lock the spec first. A deadlock would be an error of one of them, or take longer than its limit."""
    for number in range(10):
        spec = new_spec(f"Spec {number}")

        def run(number=number):
            return post_run(mia, job_body(spec=f"spec-{number}") | {"testbed": f"Machine {number}"}).status_code

        def testbed(number=number):
            body = {"name": f"Machine {number}", "spec": f"spec-{number}"}
            return mia.post("/v0/projects/adapter/testbeds", body).status_code

        def end(spec=spec):
            try:
                archive(spec)
            except (NotFound, ResourceConflict):
                return 409
            return 200

        codes = together(run, testbed, end, run)
        assert [code for code in codes if code not in {200, 201, 404, 409}] == [], codes
        archived = HardwareSpec.objects.get(pk=spec.pk)
        assert archived.archived_at is not None
        assert not Testbed.objects.filter(spec=archived).exists()
