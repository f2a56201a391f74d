"""The chain of operator events: one of each organization, in the order of the feeds, without what is not committed."""

import threading
from datetime import timedelta

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction

from orchestrator.audit.runner import run_audit
from orchestrator.evidence import operator_chains
from orchestrator.evidence.chain_models import EvidenceChain, EvidencePosition, OperatorEventLink
from orchestrator.evidence.operator_chains import delete_operator_events, link_hash, link_operator_events
from orchestrator.evidence.positions import OPERATOR_EVENTS, lock_position, read_everything_again
from runtime_jobs import events
from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.evidence.world import operator_event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def audited(folders, transactional_db):
    yield
    assert [str(finding) for finding in run_audit(chains=True)] == []


def chain_of(slug: str) -> list[tuple[int, int]]:
    return list(OperatorEventLink.objects.filter(org_slug=slug).order_by("seq").values_list("seq", "event_id"))


def link_all() -> int:
    """Link all events that are committed: none waits for an older transaction."""
    wait_for_older_transactions()
    return link_operator_events()


def test_each_organization_has_a_chain_and_the_installation_has_one():
    mine, theirs, of_all, later = (operator_event(slug) for slug in ("acme", "other", None, "acme"))
    assert link_all() == 4
    assert chain_of("acme") == [(1, mine.pk), (2, later.pk)]
    assert chain_of("other") == [(1, theirs.pk)]
    assert chain_of("") == [(1, of_all.pk)]
    first, second = OperatorEventLink.objects.filter(org_slug="acme").order_by("seq")
    assert (first.prev_hash, second.prev_hash) == ("", first.hash)
    assert second.hash == link_hash(OperatorEvent.objects.get(pk=later.pk), seq=2, prev_hash=first.hash)
    assert EvidenceChain.objects.get(org_slug="acme").head == second.hash


def test_without_a_new_event_nothing_is_written():
    operator_event()
    link_all()
    before = EvidencePosition.objects.get()
    with connection.execute_wrapper(refuse_writes):
        assert link_operator_events() == 0
    assert EvidencePosition.objects.get().event_id == before.event_id


def refuse_writes(execute, sql, params, many, context):
    assert sql.lstrip().upper().startswith("SELECT"), sql
    return execute(sql, params, many, context)


def test_an_event_of_an_open_transaction_and_all_after_it_wait():
    """A link in between would be missing: the events of a chain have the order of the feeds."""
    is_written, may_commit = threading.Event(), threading.Event()

    def write():
        try:
            with transaction.atomic():
                operator_event(reason="first")
                is_written.set()
                assert may_commit.wait(20)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    assert is_written.wait(20)
    second = operator_event(reason="second")
    assert link_operator_events() == 0
    may_commit.set()
    writer.join(20)
    assert link_all() == 2
    assert chain_of("acme") == [(1, OperatorEvent.objects.get(reason="first").pk), (2, second.pk)]


def test_two_processes_link_each_event_once():
    for _ in range(30):
        operator_event()
    wait_for_older_transactions()
    barrier = threading.Barrier(2)
    linked: list[int] = []

    def link():
        try:
            barrier.wait(20)
            linked.append(link_operator_events())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=link) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(linked) == 30
    assert [seq for seq, _ in chain_of("acme")] == list(range(1, 31))


def test_a_second_process_waits_for_the_first():
    operator_event()
    is_locked, may_end = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                lock_position(OPERATOR_EVENTS)
                is_locked.set()
                assert may_end.wait(20)
        finally:
            connections.close_all()

    link_all()  # else each of both would create the row of the position
    operator_event(None)
    wait_for_older_transactions()
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_locked.wait(20)
        with pytest.raises(OperationalError, match="lock timeout"):
            link_without_waiting()
    finally:
        may_end.set()
        holder.join(20)
    link_all()


def link_without_waiting():
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '100ms'")
        link_operator_events()


def test_many_events_are_linked_in_steps(monkeypatch):
    monkeypatch.setattr(operator_chains, "MAX_LINKS", 2)
    for _ in range(11):
        operator_event()
    assert link_all() == 2 * operator_chains.MAX_STEPS
    assert link_operator_events() == 3


def test_values_are_hashed_as_the_database_returns_them():
    operator_event(before={"share": 1e-05, "large": 1e22, "zero": -0.0}, after={"n": 2**70, "text": "ü\u2028"})
    link_all()  # and the audit reads them again


@pytest.mark.parametrize("change", ["UPDATE {} SET hash = ''", "DELETE FROM {}", "TRUNCATE {}"])
def test_a_link_cannot_be_changed(change):
    operator_event()
    link_all()
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(change.format("operator_event_links"))


def test_after_a_restore_nothing_is_linked_twice():
    for _ in range(3):
        operator_event()
    link_all()
    operator_event()
    with transaction.atomic():
        events._change_append_only("update", "UPDATE operator_events SET xid = '0'", [])
    read_everything_again()
    assert link_all() == 1
    assert [seq for seq, _ in chain_of("acme")] == [1, 2, 3, 4]


def test_a_position_of_another_cluster_begins_anew():
    operator_event()
    link_all()
    EvidencePosition.objects.update(stamp=1 << 50)
    operator_event()
    assert link_all() == 1
    assert len(chain_of("acme")) == 2


class TestRetention:
    DAY = timedelta(days=1)

    def deleted(self, limit: int = 100, except_of: tuple[str, ...] = ()) -> int:
        cutoff = database_now() - 30 * self.DAY
        return delete_operator_events(created_before=cutoff, limit=limit, except_of=except_of)

    def test_the_beginning_of_a_chain_is_deleted_and_the_rest_remains_valid(self):
        now = database_now()
        for days in (50, 40, 2, 35, 0):
            operator_event(now=now - days * self.DAY)
        link_all()
        assert self.deleted() == 2
        assert self.deleted() == 0, "an old one behind a young one stays, so that the chain has no gap"
        assert [seq for seq, _ in chain_of("acme")] == [3, 4, 5]
        operator_event()
        link_all()
        assert [seq for seq, _ in chain_of("acme")] == [3, 4, 5, 6]

    def test_it_is_done_in_batches_and_chain_by_chain(self):
        old = database_now() - 50 * self.DAY
        for slug in ("acme", "acme", "acme", "other", None):
            operator_event(slug, now=old)
        link_all()
        assert [self.deleted(limit=2) for _ in range(5)] == [2, 1, 1, 1, 0]

    def test_an_organization_may_be_excepted(self):
        old = database_now() - 50 * self.DAY
        operator_event("acme", now=old)
        link_all()
        operator_event("acme", now=old)
        operator_event(None, now=old)
        assert self.deleted(except_of=("acme",)) == 1
        assert set(OperatorEvent.objects.values_list("org_slug", flat=True)) == {"acme"}
        link_all()

    def test_a_whole_chain_may_go(self):
        operator_event(now=database_now() - 50 * self.DAY)
        link_all()
        assert self.deleted() == 1
        operator_event()
        link_all()
        (link,) = OperatorEventLink.objects.all()
        assert (link.seq, link.prev_hash) == (2, EvidenceChain.objects.get().deleted_head)
