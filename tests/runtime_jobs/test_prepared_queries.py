"""Rows of prepared queries are what the ORM would have read."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated

import pytest

from runtime_jobs.models import Job, Organization, Plan, Project
from runtime_jobs.prepared_queries import PreparedQuery, Sql, new_instance
from tests.factories import POLICY, ProjectFactory, steps_spec, submitted_steps
from workers.models import Pool

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return ProjectFactory()


def test_a_row_is_what_the_orm_makes_of_it(project):
    made = submitted_steps(project)
    found = PreparedQuery(Job, "WHERE t.job_ulid = %s").first(made.job_ulid)
    expected = Job.objects.get(pk=made.pk)
    assert found == expected
    columns = [field.attname for field in Job._meta.concrete_fields]
    assert {name: vars(found)[name] for name in columns} == {name: vars(expected)[name] for name in columns}
    assert isinstance(found.spec, dict), "JSON is read"
    assert (found._state.adding, found._state.db) == (False, "default")


def test_nothing_is_nothing(project):
    assert PreparedQuery(Job, "WHERE t.job_ulid = %s").first("rtj_none") is None
    assert PreparedQuery(Job, "WHERE t.id = ANY (%s)").all([]) == []


def test_what_is_not_read_is_a_question_of_its_own(project, django_assert_num_queries):
    made = submitted_steps(project)
    with django_assert_num_queries(1):
        found = PreparedQuery(Job, "WHERE t.id = %s", without=("spec",)).first(made.pk)
        assert found.job_ulid == made.job_ulid
    assert found.get_deferred_fields() == {"spec"}
    with django_assert_num_queries(1):
        assert found.spec == made.spec


@dataclass(frozen=True)
class TenantExample:
    organization: Organization
    plan: Plan
    project: Project | None
    pool: Pool | None
    answer: Annotated[int, Sql("6 * 7")]


def test_joined_tables_and_expressions_become_typed_fields(project, django_assert_num_queries):
    query = PreparedQuery(
        TenantExample,
        "JOIN runtime_jobs_plan plan ON plan.id = t.plan_id"
        " LEFT JOIN runtime_jobs_project project ON project.organization_id = t.id AND project.slug = %s"
        " LEFT JOIN workers_pool pool ON pool.slug = project.pool WHERE t.slug = %s",
    )
    with django_assert_num_queries(1):
        found = query.first(project.slug, project.organization.slug)
        assert found.organization.plan == found.plan == Plan(pk=found.organization.plan_id)
        assert (found.project, found.project.repositories) == (project, project.repositories)
    assert found.answer == 42
    other = query.first("no-such-project", project.organization.slug)
    assert (other.organization, other.project, other.pool, other.answer) == (project.organization, None, None, 42)
    with pytest.raises(FrozenInstanceError):
        other.answer = 43


def test_expressions_of_a_base_class_are_fields_too(project):
    @dataclass(frozen=True)
    class Derived(TenantExample):
        doubled: Annotated[int, Sql("t.id * 2")]

    tail = (
        "JOIN runtime_jobs_plan plan ON plan.id = t.plan_id LEFT JOIN runtime_jobs_project project ON false"
        " LEFT JOIN workers_pool pool ON false WHERE t.id = %s"
    )
    found = PreparedQuery(Derived, tail).first(project.organization.pk)
    assert (found.answer, found.doubled) == (42, 2 * project.organization.pk)


def test_a_new_instance_has_the_defaults_of_its_model(project):
    columns = steps_spec().columns() | vars(POLICY) | {"org_slug": "acme", "batch_id": 7}
    made, expected = new_instance(Job, columns), Job(**columns)
    values = [{name: value for name, value in vars(row).items() if name != "_state"} for row in (made, expected)]
    assert values[0].pop("job_ulid") != values[1].pop("job_ulid")
    assert values[0] == values[1]
    assert (made._state.adding, made._state.db, made._state.fields_cache) == (True, None, {})


def test_instances_share_no_default():
    first, second = new_instance(Job, {}), new_instance(Job, {})
    first.excluded_workers.append("wrk")
    first.spec["name"] = "unit"
    assert (second.excluded_workers, second.spec) == ([], {})
    assert first.job_ulid != second.job_ulid


def test_a_new_instance_has_no_other_columns():
    with pytest.raises(TypeError, match="Job has no column statue, status"):
        new_instance(Job, {"statue": 1, "status": "queued"})
