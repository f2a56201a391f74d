"""Rows by written conditions are what the ORM would have made of them."""

import pytest

from runtime_jobs.models import Job, Organization, Plan, Project
from runtime_jobs.prepared_queries import PreparedQuery
from tests.factories import ProjectFactory, submitted_steps
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


def test_what_is_joined_becomes_an_attribute_and_nothing_where_there_is_none(project, django_assert_num_queries):
    reading = PreparedQuery(
        Organization,
        "JOIN runtime_jobs_plan plan ON plan.id = t.plan_id"
        " LEFT JOIN runtime_jobs_project project ON project.organization_id = t.id AND project.slug = %s"
        " LEFT JOIN workers_pool pool ON pool.slug = project.pool WHERE t.slug = %s",
        joined={"plan": Plan, "project": Project, "pool": Pool},
        computed={"answer": "6 * 7"},
    )
    with django_assert_num_queries(1):
        found = reading.first(project.slug, project.organization.slug)
        assert found.plan == Plan(pk=found.plan_id)
        assert (vars(found)["project"], vars(found)["project"].repositories) == (project, project.repositories)
        assert vars(found)["answer"] == 42
    lonely = reading.first("no-such-project", project.organization.slug)
    assert (vars(lonely)["project"], vars(lonely)["pool"], vars(lonely)["answer"]) == (None, None, 42)
