"""The button that limits an organization."""

import pytest

from leases.models import Limit
from runtime_jobs.models import Organization
from tests.factories import OrganizationFactory
from tests.orchestrator.admin.pages import address


@pytest.fixture
def organization(db) -> Organization:
    return OrganizationFactory(slug="sandtrace")


def button(organization) -> str:
    return address(Organization, "change", organization.pk).replace("change/", "limit/")


def test_it_sets_shows_and_lifts_a_limit(olga, organization):
    page = address(Organization, "change", organization.pk)
    assert "none" in olga.get(page).content.decode()
    answer = olga.post(button(organization), {"job_type": "*", "max_active": "3", "reason": "noisy"}, follow=True)
    assert "all types: 0 of 3" in answer.content.decode()
    assert Limit.objects.get().max_active == 3
    olga.post(button(organization), {"job_type": "*", "max_active": "", "reason": "calm again"})
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [{"reason": ""}, {"max_active": "-1"}, {"max_active": "many"}, {"job_type": "none"}, {"max_active": "9" * 9}],
)
def test_what_makes_no_sense_changes_nothing(olga, organization, wrong):
    sent = {"job_type": "*", "max_active": "3", "reason": "noisy"} | wrong
    assert olga.post(button(organization), sent).status_code == 400
    assert not Limit.objects.exists()
