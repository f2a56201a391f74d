"""Transactions that change several queues lock them in the order of their keys, whatever each does to a queue."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connection

from leases.models import LaneHead, Limit, LimitKind, LimitScope, QueueHead
from leases.scheduling.limits import LimitTarget
from tests.factories import OrganizationFactory, ProjectFactory, limited, submitted
from tests.live_server import eventually

CLAIM = """
SELECT finalize_claim(ARRAY[%(lane)s]::bigint[], ARRAY[0], ARRAY[NULL]::bigint[], ARRAY[NULL]::bigint[],
                      ARRAY[%(blocked)s]::bigint[], ARRAY[%(limit)s]::bigint[], false)"""
RELEASE = "SELECT activate_queues(ARRAY[%(changed)s]::bigint[], ARRAY[%(limit)s]::bigint[], '{}')"


def paused_lane(org_slug: str) -> tuple[LaneHead, Limit]:
    """Submit a job of an organization, then pause the organization."""
    job = submitted(ProjectFactory(organization=OrganizationFactory(slug=org_slug)))
    lane = LaneHead.objects.get(lane_id=job.lane_id)
    target = LimitTarget(LimitScope.ORGANIZATION, org_slug, "")
    limited(target, kind=LimitKind.PAUSE, max_active=0)
    return lane, Limit.objects.get(scope=LimitScope.ORGANIZATION, org_slug=org_slug)


def call_alone(statement: str, values: dict[str, int]) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
    finally:
        connection.close()


@contextmanager
def locked(queue_id: int) -> Iterator[int]:
    """Lock a queue in a session of its own. Yields the identifier of its process."""
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid() FROM queue_heads WHERE queue_id = %s FOR NO KEY UPDATE", [queue_id])
            yield cursor.fetchone()[0]
    finally:
        session.rollback()
        session.close()


def blockers() -> list[list[int]]:
    """Return, for each session that waits, the processes that it waits for."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT pg_blocking_pids(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return [row[0] for row in cursor.fetchall() if row[0]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "is_blocked"),
    [(CLAIM, False), (RELEASE, True)],
    ids=["claim", "release"],
)
def test_two_transactions_that_change_two_queues_in_opposite_roles_do_not_deadlock(statement, is_blocked):
    """One transaction changes the head of a queue and the block of another one, and a second one the other way round."""
    (lane, limit), (other_lane, other_limit) = paused_lane("first"), paused_lane("second")
    for its_lane, its_limit in ((lane, limit), (other_lane, other_limit)):
        # A head that is not that of the lane, so that each transaction has it to write.
        QueueHead.objects.filter(queue_id=its_lane.queue_id).update(
            head_id=its_lane.head_id + 1000, blocked_by=its_limit.pk if is_blocked else None
        )
    roles = [(other_lane, lane, limit), (lane, other_lane, other_limit)]
    with ThreadPoolExecutor(2) as pool:
        with locked(lane.queue_id):
            with locked(other_lane.queue_id) as second_holder:
                calls = []
                for changed, blocked, full in roles:
                    values = {
                        "lane": changed.lane_id,
                        "changed": changed.queue_id,
                        "blocked": blocked.queue_id,
                        "limit": full.pk,
                    }
                    calls.append(pool.submit(call_alone, statement, values))
                eventually(lambda: len(blockers()) == 2)
            # Whoever waited for the second queue has it now, and waits for the first one.
            eventually(lambda: len(blockers()) == 2 and not any(second_holder in pids for pids in blockers()))
        for call in calls:
            call.result(60)  # a deadlock would be an error of one of them
    assert list(QueueHead.objects.order_by("queue_id").values_list("head_id", "blocked_by")) == [
        (lane.head_id, None if is_blocked else limit.pk),
        (other_lane.head_id, None if is_blocked else other_limit.pk),
    ]
