"""Lanes, queues and limits have ids of 32 bits: they do not run out, and a used one is not given twice."""

import pytest
from django.db import IntegrityError, connection

from leases.models import Lane, LaneQueue, Limit
from leases.scheduling.reused_ids import get_or_create
from orchestrator.audit.runner import run_audit
from orchestrator.services.concurrency import ConcurrencyGroup
from tests.factories import ProjectFactory, WorkerFactory, claimed, submitted

pytestmark = pytest.mark.django_db(transaction=True)

MODELS = (Lane, LaneQueue, Limit)
LAST = 2**31 - 1


def continue_at(model, next_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s, false)", [model._meta.db_table, next_id])


def drawn() -> list[tuple[int, bool]]:
    """Return the position of each sequence."""
    with connection.cursor() as cursor:
        found = []
        for model in MODELS:
            cursor.execute(f"SELECT last_value, is_called FROM {model._meta.db_table}_id_seq")
            found.append(cursor.fetchone())
    return found


@pytest.fixture(autouse=True)
def sequences():
    for model in MODELS:
        continue_at(model, 1)
    yield
    for model in MODELS:
        continue_at(model, 1)


def test_an_id_is_drawn_for_a_new_row_only():
    project = ProjectFactory()
    worker = WorkerFactory(capacity=9)
    submitted(project, group=ConcurrencyGroup("main"))
    before = drawn()
    for _ in range(5):
        submitted(project, group=ConcurrencyGroup("main"))
    claimed(worker)
    assert drawn() == before
    assert [model.objects.count() for model in MODELS] == [1, 1, 1]


def test_after_the_last_id_of_32_bits_jobs_go_on():
    """A busy organization makes a lane and a limit for each branch that it pushes."""
    project, worker = ProjectFactory(), WorkerFactory(capacity=9)
    for model in MODELS:
        continue_at(model, LAST - 1)
    for branch in range(4):
        submitted(project, group=ConcurrencyGroup(f"branch-{branch}"))
    assert sorted(Lane.objects.values_list("pk", flat=True)) == [1, 2, LAST - 1, LAST]
    assert sorted(Limit.objects.values_list("pk", flat=True)) == [1, 2, LAST - 1, LAST]
    assert len({claimed(worker).job.concurrency_key for _ in range(4)}) == 4
    assert run_audit() == []


def test_an_id_that_a_row_still_has_is_not_given_again():
    project, worker = ProjectFactory(), WorkerFactory(capacity=9)
    for branch in range(3):
        submitted(project, group=ConcurrencyGroup(f"old-{branch}"))
    for model in (Lane, Limit):
        continue_at(model, 1)
    for branch in range(3):
        submitted(project, group=ConcurrencyGroup(f"new-{branch}"))
    assert [Lane.objects.count(), Limit.objects.count()] == [6, 6]
    assert len({claimed(worker).job.concurrency_key for _ in range(6)}) == 6
    assert run_audit() == []


def test_other_violations_are_errors():
    with pytest.raises(IntegrityError, match="not-null"):
        get_or_create(Limit, kind=None, scope="key", org_slug="acme", key="main")
