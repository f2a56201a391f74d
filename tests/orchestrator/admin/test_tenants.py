"""Tenants and people are edited by those who may; every change leaves who, what, before and after."""

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import DatabaseError

from runtime_jobs.models import Membership, OperatorEvent, Organization, Plan, Project
from tests.factories import OrganizationFactory, PlanFactory, PoolFactory, ProjectFactory
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from workers.models import Pool

# Fields of a plan that most forms here do not change.
FURTHER = {"weight": "1", "submit_burst": "2000", "default_timeout_seconds": "60"}


@pytest.fixture
def plan(db):
    return PlanFactory(name="team")


def events():
    return [(event.action, event.target, event.before, event.after) for event in OperatorEvent.objects.order_by("id")]


def test_an_organization_is_made_and_changed(olga, plan):
    form = {"slug": "acme", "name": "Acme", "plan": plan.pk, "egress": "*.npmjs.org\r\nghcr.io:443\r\n"}
    assert olga.post(address(Organization, "add"), form).status_code == 302
    row = Organization.objects.get()
    assert row.egress == ["*.npmjs.org", "ghcr.io:443"]
    change = form | {"slug": "stolen", "hosted_runtime_analysis": "on"}
    assert olga.post(address(Organization, "change", row.pk), change).status_code == 302
    row.refresh_from_db()
    assert (row.slug, row.hosted_runtime_analysis) == ("acme", True)
    made, changed = events()
    assert made[:3] == ("organization.created", "organization:acme", None)
    assert (made[3]["plan"], made[3]["egress"]) == ("team", ["*.npmjs.org", "ghcr.io:443"])
    assert changed == (
        "organization.changed",
        "organization:acme",
        {"hosted_runtime_analysis": False},
        {"hosted_runtime_analysis": True},
    )
    assert OperatorEvent.objects.first().actor == "operator:olga"


def test_saving_without_a_change_leaves_no_event(olga, plan):
    row = OrganizationFactory(slug="acme", plan=plan)
    form = {"name": "", "plan": plan.pk, "egress": "", "hosted_runtime_analysis": "on"}
    assert olga.post(address(Organization, "change", row.pk), form).status_code == 302
    assert events() == []


def test_a_projects_names_never_change(olga, plan):
    row = ProjectFactory(slug="web")
    other = OrganizationFactory()
    form = {"organization": other.pk, "slug": "stolen", "enabled": "on", "repositories": "a/b\nc/*", "pool": ""}
    form |= {"configured_directory": ".", "configured_timeout_seconds": "300", "visibility": "private"}
    assert olga.post(address(Project, "change", row.pk), form).status_code == 302
    row.refresh_from_db()
    assert (row.slug, row.organization == other, row.repositories) == ("web", False, ["a/b", "c/*"])
    assert [event[2:] for event in events()] == [
        ({"repositories": ["cc-consulting-nv/web"]}, {"repositories": ["a/b", "c/*"]})
    ]


def test_a_project_goes_into_a_pool_that_exists(olga):
    row = ProjectFactory(slug="web")
    form = {
        "enabled": "on",
        "repositories": "a/b",
        "configured_directory": ".",
        "configured_timeout_seconds": "300",
        "visibility": "private",
    }
    answer = olga.post(address(Project, "change", row.pk), form | {"pool": "nowhere"})
    assert "There is no pool " in answer.content.decode()
    pool = PoolFactory(slug="big")
    assert olga.post(address(Project, "change", row.pk), form | {"pool": pool.slug}).status_code == 302


def test_a_plan_and_a_pool_keep_their_names(olga, plan):
    form = {"name": "free", "priority": "250", "max_timeout_seconds": "60", **FURTHER}
    olga.post(address(Plan, "change", plan.pk), form)
    pool = PoolFactory()
    olga.post(
        address(Pool, "change", pool.pk), {"slug": "x", "description": "big ones", "least_isolation": "namespaces"}
    )
    plan.refresh_from_db()
    pool.refresh_from_db()
    assert (plan.name, plan.priority) == ("team", 250)
    assert (pool.slug, pool.description) == ("shared-linux", "big ones")
    assert [event[:2] for event in events()] == [("plan.changed", "plan:team"), ("pool.changed", "pool:shared-linux")]


def test_aging_is_switched_off_and_on_for_one_pool(olga):
    """Document 002 demands the strict order of priorities."""
    pool = PoolFactory(aging=True)
    form = {"slug": pool.slug, "description": "", "least_isolation": "namespaces"}
    assert 'name="aging"' in olga.get(address(Pool, "change", pool.pk)).content.decode()
    found = []
    for switch in ({}, {"aging": "on"}):
        olga.post(address(Pool, "change", pool.pk), form | switch)
        pool.refresh_from_db()
        found.append(pool.aging)
    assert found == [False, True]
    assert olga.post(address(Pool, "change", pool.pk), form | {"aging": "on", "trace": "none"}).status_code == 302
    pool.refresh_from_db()
    assert pool.trace == "none"
    assert [event[0] for event in events()] == ["pool.changed"] * 3


def test_a_membership_is_given_and_ended(olga, plan):
    user, organization = person("mia"), OrganizationFactory(slug="acme")
    olga.post(address(Membership, "add"), {"user": user.pk, "organization": organization.pk, "role": "operator"})
    row = Membership.objects.get()
    assert olga.post(address(Membership, "delete", row.pk), {"post": "yes"}).status_code == 302
    assert not Membership.objects.exists()
    assert [event[:2] for event in events()] == [
        ("membership.created", "membership:acme/mia"),
        ("membership.ended", "membership:acme/mia"),
    ]


def test_a_role_is_changed_and_recorded_for_the_organization(olga, plan):
    user, organization = person("mia"), OrganizationFactory(slug="acme")
    row = Membership.objects.create(user=user, organization=organization)
    assert olga.post(address(Membership, "change", row.pk), {"role": "quota_manager"}).status_code == 302
    row.refresh_from_db()
    assert (row.role, row.user, row.organization) == ("quota_manager", user, organization)
    event = OperatorEvent.objects.get()
    assert (event.action, event.org_slug) == ("membership.changed", "acme")
    assert (event.before, event.after) == ({"role": "viewer"}, {"role": "quota_manager"})


def test_the_default_project_is_one_of_the_organization(olga, plan):
    organization = OrganizationFactory(slug="acme", plan=plan)
    own = ProjectFactory(organization=organization)
    foreign = ProjectFactory(organization=OrganizationFactory(slug="other", plan=plan))
    form = {"name": "", "plan": plan.pk, "egress": "", "hosted_runtime_analysis": "on"}
    for project in (foreign, own):
        olga.post(address(Organization, "change", organization.pk), form | {"default_project": project.pk})
        organization.refresh_from_db()
        assert organization.default_project == (own if project is own else None)
    assert OperatorEvent.objects.get().org_slug == "acme"


def test_a_change_and_its_event_are_one(olga, plan, monkeypatch):
    """Where the event cannot be written, nothing has changed."""

    def full(*_, **__):
        raise DatabaseError("no room")

    monkeypatch.setattr("orchestrator.admin.audited.record_operator_event", full)
    form = {"priority": "250", "max_timeout_seconds": "60", **FURTHER}
    with pytest.raises(DatabaseError):
        olga.post(address(Plan, "change", plan.pk), form)
    plan.refresh_from_db()
    assert plan.priority == 200


def test_editing_needs_its_own_permission(plan):
    viewer = client_of(person("vera", "runtime_jobs.view_plan"))
    editor = client_of(person("edda", "runtime_jobs.view_plan", "runtime_jobs.change_plan"))
    form = {"priority": "250", "max_timeout_seconds": "60", **FURTHER}
    assert viewer.get(address(Plan, "change", plan.pk)).status_code == 200
    assert viewer.post(address(Plan, "change", plan.pk), form).status_code == 403
    assert editor.post(address(Plan, "change", plan.pk), form).status_code == 302
    assert editor.post(address(Plan, "add"), form | {"name": "x"}).status_code == 403


def test_the_history_of_a_tenant_is_its_operator_events(olga, plan):
    olga.post(
        address(Plan, "change", plan.pk),
        {"priority": "250", "max_timeout_seconds": "60", **FURTHER},
    )
    answer = olga.get(address(Plan, "history", plan.pk), follow=True)
    assert [event.action for event in answer.context["cl"].result_list] == ["plan.changed"]


def test_what_a_person_may_is_changed_with_before_and_after(olga, db):
    user, group = person("mia"), Group.objects.create(name="night shift")
    group.permissions.add(Permission.objects.get(codename="operate_job"))
    form = {
        "username": "mia", "is_active": "on", "is_staff": "on", "is_superuser": "on", "groups": [group.pk],
    }  # fmt: skip
    assert olga.post(address(User, "change", user.pk), form).status_code == 302
    ((action, target, before, after),) = events()
    assert (action, target) == ("user.changed", "user:mia")
    assert before == {"is_superuser": False, "groups": []}
    assert after == {"is_superuser": True, "groups": ["night shift"]}


def test_a_password_is_changed_and_never_reported(olga, db):
    user = person("mia")
    form = {"password1": "correct horse battery", "password2": "correct horse battery", "usable_password": "true"}
    answer = olga.post(f"/admin/auth/user/{user.pk}/password/", form)
    assert answer.status_code == 302
    user.refresh_from_db()
    assert user.check_password("correct horse battery")
    assert events() == [("user.password_changed", "user:mia", None, None)]


def test_a_new_person_leaves_no_password_in_the_trail(olga, db):
    form = {"username": "nina", "usable_password": "true"} | dict.fromkeys(
        ("password1", "password2"), "correct horse b"
    )
    assert olga.post(address(User, "add"), form).status_code == 302
    ((action, target, _, after),) = events()
    assert (action, target) == ("user.created", "user:nina")
    assert "horse" not in str(after)
    assert "argon2" not in str(after)
