"""Members do in a browser session what their role in each organization permits."""

import pytest
from django.test import Client

from orchestrator.core.principals import OF_ROLE, client_of_person
from runtime_jobs.models import MemberRole, Membership
from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, ProjectFactory, submitted

pytestmark = pytest.mark.django_db
READ = {Scope.JOBS_READ, Scope.ORCH_READ}
LIMIT = {"kind": "rate", "per_hour": 60, "reason": "test"}


@pytest.fixture
def mia(django_user_model):
    return django_user_model.objects.create_user("mia")


def browser_of(user) -> Client:
    browser = Client(raise_request_exception=False)
    browser.force_login(user)
    return browser


def join(user, slug: str, role: str):
    organization = OrganizationFactory(slug=slug)
    ProjectFactory(organization=organization)
    Membership.objects.create(user=user, organization=organization, role=role)
    return organization


def test_each_role_has_its_scopes():
    assert {
        MemberRole.VIEWER: READ,
        MemberRole.OPERATOR: READ | {Scope.ORCH_OPERATE},
        MemberRole.QUOTA_MANAGER: READ | {Scope.ORCH_OPERATE, Scope.ORCH_QUOTA},
    } == OF_ROLE


def test_a_new_member_is_a_viewer(mia):
    organization = OrganizationFactory(slug="acme")
    assert Membership.objects.create(user=mia, organization=organization).role == MemberRole.VIEWER


@pytest.mark.parametrize(
    ("role", "cancel", "limit"), [("viewer", 403, 403), ("operator", 200, 403), ("quota_manager", 200, 201)]
)
def test_a_role_permits_what_its_scopes_permit(mia, role, cancel, limit):
    organization = join(mia, "acme", role)
    job, browser = submitted(organization.projects.get()), browser_of(mia)
    assert browser.get("/v1/limits").status_code == 200
    assert browser.get("/api/jobs").status_code == 200
    (row,) = browser.get("/api/jobs").json()["results"]
    canceled = browser.post(f"/api/jobs/{row['jobId']}/cancel", {}, content_type="application/json")
    assert canceled.status_code == cancel
    set_limit = browser.post("/v1/limits", LIMIT | {"org_slug": "acme"}, content_type="application/json")
    assert set_limit.status_code == limit
    job.refresh_from_db()
    assert (job.state == "canceled") == (cancel == 200)


def test_a_role_counts_only_in_its_organization(mia):
    theirs, mine = join(mia, "viewed", "viewer"), join(mia, "operated", "quota_manager")
    jobs = {organization.slug: submitted(organization.projects.get()) for organization in (theirs, mine)}
    browser = browser_of(mia)
    rows = {row["tenant"]: row["jobId"] for row in browser.get("/api/jobs").json()["results"]}
    assert set(rows) == {"viewed", "operated"}
    statuses = {
        slug: browser.post(f"/api/jobs/{job_id}/cancel", {}, content_type="application/json").status_code
        for slug, job_id in rows.items()
    }
    assert statuses == {"viewed": 404, "operated": 200}
    for slug, status in (("viewed", 404), ("operated", 201)):
        response = browser.post("/v1/limits", LIMIT | {"org_slug": slug}, content_type="application/json")
        assert response.status_code == status
    jobs["viewed"].refresh_from_db()
    assert jobs["viewed"].state == "queued"


def test_a_person_without_organization_sees_nothing(mia):
    found = client_of_person(mia)
    assert (found.organizations, found.scopes) == ((), READ)
    assert browser_of(mia).get("/api/jobs").json()["results"] == []
