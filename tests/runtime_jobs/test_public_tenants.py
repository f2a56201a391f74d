"""UUIDs, public slugs and plans: of new rows, and of rows that another program inserts."""

from importlib import import_module

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from runtime_jobs.models import Organization, Plan, Project
from runtime_jobs.plans import TIERS, plan_of_tier
from runtime_jobs.resource_names import is_slug
from tests.factories import OrganizationFactory, ProjectFactory

pytestmark = pytest.mark.django_db


def project_of(org: str, slug: str) -> Project:
    return ProjectFactory(organization=OrganizationFactory(slug=org), slug=slug)


def test_a_public_slug_is_unique_over_all_organizations():
    first, second, third = (project_of(org, "web") for org in ("a", "b", "c"))
    assert first.public_slug == "web"
    assert len({first.public_slug, second.public_slug, third.public_slug}) == 3
    assert all(row.public_slug.startswith("web-") and is_slug(row.public_slug) for row in (second, third))
    second.enabled = False
    second.save()
    assert Project.objects.get(pk=second.pk).public_slug == second.public_slug, "it never changes"
    with pytest.raises(IntegrityError), transaction.atomic():
        Project.objects.filter(pk=second.pk).update(public_slug="web")


@pytest.mark.parametrize(("slug", "public"), [("a--b", "a-b"), ("ab-", "ab"), ("x" * 63, "x" * 63)])
def test_a_public_slug_has_the_form_of_the_protocol(slug, public):
    assert project_of("a", slug).public_slug == public
    assert is_slug(project_of("b", slug).public_slug)


def test_a_project_is_private_and_every_row_has_a_uuid():
    project = ProjectFactory()
    assert project.visibility == "private"
    assert len({project.uuid, project.organization.uuid, ProjectFactory(slug="b").uuid}) == 3
    with pytest.raises(ValidationError):
        Project(visibility="secret", organization=project.organization, slug="c").full_clean()


def inserted_by_sql(slug: str, organization: Organization) -> Project:
    """A statement that names none of the columns with a default in the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runtime_jobs_project (organization_id, slug, enabled, repositories, pool, least_isolation, trace,"
            " configured_command, configured_directory, configured_timeout_seconds, configured_network, push_enabled,"
            " webhook_generation) VALUES (%s, %s, false, '{}', '', '', '', '{}', '.', 300, false, false, 0)",
            [organization.pk, slug],
        )
    return Project.objects.get(organization=organization, slug=slug)


def test_a_project_that_is_inserted_by_sql_gets_the_defaults_of_the_database():
    organization = OrganizationFactory()
    first, second = (inserted_by_sql(slug, organization) for slug in ("a", "b"))
    assert len({first.uuid, second.uuid, first.public_slug, second.public_slug}) == 4
    assert (first.visibility, is_slug(first.public_slug)) == ("private", True)


def test_the_migration_creates_the_plans_of_the_tiers():
    import_module("runtime_jobs.migrations.0002_triggers_and_storage").create_plans(apps, None)
    made = {plan.pop("name"): plan for plan in Plan.objects.values().order_by("name")}
    Plan.objects.all().delete()
    wanted = {tier: Plan.objects.filter(pk=plan_of_tier(tier).pk).values().get() for tier in TIERS}
    for plan in (*made.values(), *wanted.values()):
        plan.pop("id")
    assert made == {tier: {key: value for key, value in plan.items() if key != "name"} for tier, plan in wanted.items()}


@pytest.mark.parametrize(
    ("requested", "default", "maximum", "granted"),
    [(None, 3600, 900, 900), (None, 60, 900, 60), (1000, 60, 900, 900), (10, 60, 900, 10)],
)
def test_a_timeout_is_reduced_to_the_maximum_of_the_plan(requested, default, maximum, granted):
    plan = Plan(default_timeout_seconds=default, max_timeout_seconds=maximum)
    assert plan.bounded_timeout(requested) == granted
