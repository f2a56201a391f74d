"""UUIDs, public slugs and plans: of new rows, of rows that the former release makes, and of rows that exist."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from config.paths import BASE_DIR
from runtime_jobs.models import Organization, Plan, Project
from runtime_jobs.plans import TIERS, plan_of_tier
from runtime_jobs.resource_names import is_slug
from tests.factories import OrganizationFactory, PlanFactory, ProjectFactory

pytestmark = pytest.mark.django_db

(_FILE,) = (BASE_DIR / "runtime_jobs" / "migrations").glob("*_public_tenants.py")
MIGRATION = import_module(f"runtime_jobs.migrations.{_FILE.stem}")
EDITOR = SimpleNamespace(connection=connection)
INDEXES = ("one_organization_per_uuid", "one_project_per_uuid", "one_project_per_public_slug")


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


def former_release_inserts(slug: str, organization: Organization) -> Project:
    """A process of the former release names none of the new columns."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runtime_jobs_project (organization_id, slug, enabled, repositories, pool, least_isolation,"
            " configured_command, configured_directory, configured_timeout_seconds, configured_network, push_enabled,"
            " webhook_generation) VALUES (%s, %s, false, '{}', '', '', '{}', '.', 300, false, false, 0)",
            [organization.pk, slug],
        )
    return Project.objects.get(organization=organization, slug=slug)


def test_the_former_release_may_insert_projects():
    organization = OrganizationFactory()
    first, second = (former_release_inserts(slug, organization) for slug in ("a", "b"))
    assert len({first.uuid, second.uuid, first.public_slug, second.public_slug}) == 4
    assert (first.visibility, is_slug(first.public_slug)) == ("private", True)


@pytest.fixture
def before_the_migration(transactional_db):
    """Two organizations with projects of the same slug, without values, rules and indexes."""
    rows = [project_of(org, slug) for org, slug in (("a", "web"), ("b", "web"), ("b", "a--b"), ("c", "a-b"))]
    with connection.cursor() as cursor:
        for name in INDEXES:
            cursor.execute(f"DROP INDEX {name}")
        for table, columns in (("organization", ("uuid",)), ("project", ("uuid", "public_slug"))):
            for column in columns:
                cursor.execute(f"ALTER TABLE runtime_jobs_{table} ALTER COLUMN {column} DROP NOT NULL")
                cursor.execute(f"UPDATE runtime_jobs_{table} SET {column} = NULL")
    return rows


def not_null_columns() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE is_nullable = 'NO'"
            " AND column_name IN ('uuid', 'public_slug') AND table_name LIKE 'runtime_jobs_%%'"
        )
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.parametrize("batch", [1, 1000])
def test_rows_that_exist_are_filled_and_then_required(before_the_migration, monkeypatch, batch):
    for name in ("FILL_PROJECTS", "FILL_ORGANIZATIONS"):
        monkeypatch.setattr(MIGRATION, name, getattr(MIGRATION, name).replace("LIMIT 1000", f"LIMIT {batch}"))
    for _ in range(2):  # it may be repeated after an interruption
        MIGRATION.change_tenants(apps, EDITOR)
        slugs = list(Project.objects.order_by("id").values_list("public_slug", flat=True))
        assert (slugs[0], slugs[2]) == ("web", "a-b"), "the oldest has the slug itself"
        assert (slugs[1][:4], slugs[3][:4]) == ("web-", "a-b-")
        assert all(map(is_slug, slugs))
        assert len(set(Project.objects.values_list("uuid", flat=True))) == 4
        required = {"runtime_jobs_organization.uuid", "runtime_jobs_project.uuid", "runtime_jobs_project.public_slug"}
        assert not_null_columns() >= required
        with connection.cursor() as cursor:
            cursor.execute("SELECT indexname FROM pg_indexes WHERE indexname = ANY (%s)", [list(INDEXES)])
            assert {name for (name,) in cursor.fetchall()} == set(INDEXES)


def test_a_project_that_is_inserted_during_the_migration_keeps_its_values(before_the_migration):
    inserted = former_release_inserts("new", before_the_migration[0].organization)
    MIGRATION.change_tenants(apps, EDITOR)
    assert Project.objects.get(pk=inserted.pk).public_slug == inserted.public_slug


def test_missing_plans_are_created_and_others_stay_as_they_are():
    PlanFactory(name="team", priority=210, max_timeout_seconds=900)
    MIGRATION.create_plans(apps, EDITOR)
    MIGRATION.create_plans(apps, EDITOR)
    plans = {plan.name: plan for plan in Plan.objects.all()}
    assert set(plans) == set(TIERS)
    assert (plans["team"].priority, plans["team"].max_timeout_seconds) == (210, 900)
    for name in set(TIERS) - {"team"}:
        made, columns = plans.pop(name), ("priority", "max_timeout_seconds", "default_timeout_seconds", "max_active")
        Plan.objects.filter(name=name).delete()
        wanted = plan_of_tier(name)
        for column in (*columns, "one_per_address", "max_queued", "submits_per_minute", "weight"):
            assert getattr(made, column) == getattr(wanted, column), (name, column)


@pytest.mark.parametrize(
    ("requested", "default", "maximum", "granted"),
    [(None, 3600, 900, 900), (None, 60, 900, 60), (1000, 60, 900, 900), (10, 60, 900, 10)],
)
def test_a_timeout_is_reduced_to_the_maximum_of_the_plan(requested, default, maximum, granted):
    plan = Plan(default_timeout_seconds=default, max_timeout_seconds=maximum)
    assert plan.bounded_timeout(requested) == granted
