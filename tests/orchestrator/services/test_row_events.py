"""Operator events of rows that have a name in them, `event_target`."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_change_of, record_event_of
from runtime_jobs.models import OperatorEvent, PackVersion, Secret
from tests.factories import ALICE, HardwareSpecFactory, OrganizationFactory

pytestmark = pytest.mark.django_db


def test_a_row_of_an_organization_names_the_event_its_target_and_the_organization():
    row = PackVersion(organization=OrganizationFactory(slug="acme"), pack_id="scan", version="1.2.0")
    record_event_of(row, "registered", Cause(ALICE), after={"plan_hash": "x"})
    event = OperatorEvent.objects.get()
    assert (event.action, event.target, event.org_slug) == ("pack.registered", "pack:acme:scan 1.2.0", "acme")
    assert (event.before, event.after) == (None, {"plan_hash": "x"})


def test_a_long_name_is_cut_to_the_width_of_the_column():
    row = Secret(organization=OrganizationFactory(slug="acme"), name="N" * 300)
    record_event_of(row, "created", Cause(ALICE))
    assert OperatorEvent.objects.get().target == "secret:acme/" + "N" * 188


def test_a_row_of_no_organization_concerns_the_installation():
    record_event_of(HardwareSpecFactory(), "created", Cause(ALICE))
    event = OperatorEvent.objects.get()
    assert (event.action, event.org_slug) == ("spec.created", None)


def test_a_change_records_the_members_that_have_changed():
    spec = HardwareSpecFactory()
    record_change_of(spec, Cause(ALICE), before={"name": "a", "slug": "s"}, after={"name": "b", "slug": "s"})
    event = OperatorEvent.objects.get()
    assert (event.action, event.before, event.after) == ("spec.changed", {"name": "a"}, {"name": "b"})


def test_a_change_that_has_changed_nothing_records_nothing():
    record_change_of(HardwareSpecFactory(), Cause(ALICE), before={"name": "a"}, after={"name": "a"})
    assert not OperatorEvent.objects.exists()
