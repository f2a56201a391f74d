"""The operator's switches for runners: access by lease id alone, and certificates of workers."""

import pytest

from runtime_jobs.models import OperatorEvent
from tests.factories import PoolFactory, WorkerFactory
from tests.orchestrator.admin.pages import address
from workers.models import Pool, Worker

pytestmark = pytest.mark.django_db
NEW = {"slug": "build-09", "capacity": "1", "labels": "", "capabilities": "linux"}


def last_change() -> tuple[dict, dict]:
    event = OperatorEvent.objects.latest("pk")
    return event.before, event.after


def test_a_pool_trusts_no_lease_id_unless_somebody_says_so_and_that_is_written_down(olga):
    pool = PoolFactory()
    assert pool.trusts_lease_ids is False
    form = {"slug": pool.slug, "description": "", "least_isolation": "none", "trusts_lease_ids": "on"}
    assert olga.post(address(Pool, "change", pool.pk), form).status_code == 302
    pool.refresh_from_db()
    assert pool.trusts_lease_ids is True
    before, after = last_change()
    assert (before["trusts_lease_ids"], after["trusts_lease_ids"]) == (False, True)


def test_a_worker_is_registered_with_its_certificate(olga):
    given = NEW | {"pool": PoolFactory().pk, "certificate_subject": "CN=build-09"}
    assert olga.post(f"{address(Worker, 'changelist')}add/", given).status_code == 200
    assert Worker.objects.get().certificate_subject == "CN=build-09"
    assert last_change()[1]["certificate_subject"] == "CN=build-09"


def test_most_workers_have_none(olga):
    for slug in ("build-08", "build-09"):
        given = NEW | {"slug": slug, "pool": PoolFactory().pk, "certificate_subject": ""}
        assert olga.post(f"{address(Worker, 'changelist')}add/", given).status_code == 200
    assert list(Worker.objects.values_list("certificate_subject", flat=True)) == [None, None]


def test_two_workers_share_no_certificate(olga):
    WorkerFactory(certificate_subject="CN=build-09")
    given = NEW | {"pool": PoolFactory().pk, "certificate_subject": "CN=build-09"}
    assert olga.post(f"{address(Worker, 'changelist')}add/", given).status_code == 400
    assert Worker.objects.count() == 1
