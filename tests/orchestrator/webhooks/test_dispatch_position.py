"""The position of the dispatchers after a restore: nothing is sent twice, and nothing that was not sent is left out."""

import pytest
from django.db import connection, transaction

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.events.pages import Place, is_future
from orchestrator.services import cancellation
from orchestrator.webhooks.dispatch_position import adopt_restored_events
from orchestrator.webhooks.distribution import distribute_page
from orchestrator.webhooks.models import Delivery, DispatchPosition
from runtime_jobs import events
from runtime_jobs.models import JobEvent
from tests.factories import ALICE, OPERATOR, OrganizationFactory, ProjectFactory, submitted
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db(transaction=True)
OTHER_CLUSTER = 1 << 40  # added to a stamp: the numbers of a cluster that is far ahead


@pytest.fixture
def project(db):
    distribute_page()  # the position is at the present
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


def distributed():
    wait_for_older_transactions()
    while (page := distribute_page()) is not None and not page.is_complete:
        pass


def types():
    return list(Delivery.objects.order_by("id").values_list("event_type", flat=True))


def come_from_another_cluster():
    """Give all events and the position the numbers of a cluster that is far ahead."""
    with transaction.atomic():
        for table in events.EVENT_TABLES:
            foreign = f"UPDATE {table} SET xid = (xid::text::bigint + %s)::text::xid8 WHERE xid <> '0'"
            events._change_append_only("update", foreign, [OTHER_CLUSTER])
    position = DispatchPosition.objects.get()
    DispatchPosition.objects.update(stamp=position.stamp + OTHER_CLUSTER)


def test_a_position_in_the_future_becomes_the_present_and_is_reported(project, caplog):
    make_webhook(project.organization)
    DispatchPosition.objects.update(stamp=OTHER_CLUSTER, event_id=7)
    before = DispatchPosition.objects.get()
    distribute_page()
    submitted(project)
    distributed()
    assert types() == ["job.queued"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert before.beat_at.isoformat() in record.getMessage()


def test_the_first_position_is_not_reported(caplog):
    DispatchPosition.objects.all().delete()
    distribute_page()
    assert DispatchPosition.objects.exists()
    assert caplog.records == []


def test_after_a_restore_what_was_not_sent_is_sent_and_nothing_twice(project):
    make_webhook(project.organization)
    sent = submitted(project)
    record_operator_event("limit.set", target="it", cause=Cause(OPERATOR), org_slug="sandtrace")
    distributed()
    Delivery.objects.all().delete()  # those of long ago are no longer in a dump
    cancellation.cancel(job_ulid=sent.job_ulid, actor=ALICE, deadline_seconds=30)
    record_operator_event("limit.lifted", target="it", cause=Cause(OPERATOR), org_slug="sandtrace")
    submitted(project)
    come_from_another_cluster()

    adopt_restored_events()
    distributed()
    assert sorted(types()) == ["job.canceled", "job.queued", "limit.lifted"]
    assert events.first_invalid_seq(sent.job_ulid) is None
    submitted(project)
    distributed()
    assert len(types()) == 4

    of_job = JobEvent.objects.filter(job_id=sent.job_ulid).order_by("xid", "id")
    assert list(of_job.values_list("seq", flat=True)) == [1, 2]


def test_a_position_beyond_all_restored_events_is_moved_at_once(project):
    """Otherwise a dispatcher that starts late, when the numbers have been reached, would miss what is in between."""
    make_webhook(project.organization)
    submitted(project)
    distributed()
    DispatchPosition.objects.update(stamp=OTHER_CLUSTER)
    adopt_restored_events()
    assert not is_future(Place(DispatchPosition.objects.get().stamp))
    submitted(project)
    distributed()
    assert types() == ["job.queued", "job.queued"]


def test_the_same_cluster_changes_nothing(project):
    submitted(project)
    wait_for_older_transactions()
    distribute_page()
    before = DispatchPosition.objects.values().get()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()")
    adopt_restored_events()
    assert DispatchPosition.objects.values().get() == before


def test_a_dump_of_a_release_without_positions(monkeypatch):
    tables = [name for name in connection.introspection.table_names() if name != "dispatch_position"]
    monkeypatch.setattr(connection.introspection, "table_names", lambda *_: tables)
    adopt_restored_events()
