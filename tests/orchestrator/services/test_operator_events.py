"""Operator events: the organization that they concern, and their position in the feeds."""

import pytest
from django.db import connection, connections, transaction

from leases.models import LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import changed_members, record_operator_event
from orchestrator.services import credentials
from runtime_jobs.models import OperatorEvent
from tests.factories import ALICE, OPERATOR, OrganizationFactory, PoolFactory, limited


def concerned() -> list[tuple[str, str | None, str | None]]:
    return list(OperatorEvent.objects.order_by("pk").values_list("action", "org_slug", "job_type"))


@pytest.mark.django_db
class TestTenants:
    def test_limits_belong_to_their_organization_and_type(self):
        OrganizationFactory(slug="acme")
        limited("acme", max_active=5, cause=Cause(ALICE, "x"))
        limited("acme", "scan", kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "x"))
        limited(LimitTarget.of_project("acme", "web"), kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "x"))
        limited(LimitTarget(LimitScope.JOB_TYPE, "", "scan"), kind=LimitKind.PAUSE, max_active=0)
        limited(LimitTarget(LimitScope.POOL, "", PoolFactory().slug), kind=LimitKind.PAUSE, max_active=0)
        assert concerned() == [
            ("limit.set", "acme", None),
            ("limit.set", "acme", "scan"),
            ("limit.set", "acme", None),
            ("limit.set", None, "scan"),
            ("limit.set", None, None),
        ]

    def test_tokens_belong_to_their_organization_and_workers_to_none(self):
        organization = OrganizationFactory(slug="acme")
        row, _ = credentials.create_api_token(organization=organization, name="ci", scopes=[], cause=Cause(OPERATOR))
        credentials.revoke_api_token(token_id=row.pk, cause=Cause(OPERATOR, "x"))
        credentials.register_worker(
            slug="w", pool=PoolFactory(), capacity=1, labels=[], capabilities=[], cause=Cause(OPERATOR)
        )
        assert [event[:2] for event in concerned()] == [
            ("token.created", "acme"),
            ("token.revoked", "acme"),
            ("worker.registered", None),
        ]


@pytest.mark.django_db(transaction=True)
def test_a_later_event_of_an_older_transaction_has_no_smaller_stamp():
    """The older transaction has its number before the younger one commits, and records its event after that."""
    other = connections.create_connection("default")
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()")
            with other.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO operator_events (event_ulid, action, actor, target, reason, created_at)"
                    " VALUES ('evt_1', 'a', 'a', 't', '', now())"
                )
            record_operator_event("b", target="t", cause=Cause(ALICE))
        first, second = OperatorEvent.objects.order_by("pk").values_list("xid", flat=True)
        assert first <= second
    finally:
        other.close()


def test_an_event_has_the_members_that_have_changed():
    before, after = {"a": 1, "b": [1], "c": None}, {"a": 1, "b": [2], "c": ""}
    assert changed_members(before, after) == ({"b": [1], "c": None}, {"b": [2], "c": ""})
    assert changed_members(before, dict(before)) == ({}, {})
