"""Shared rows: every test begins with them as they were built, and a test without them with an empty database."""

import pytest

from runtime_jobs.models import Organization
from tests.factories import OrganizationFactory
from tests.shared_rows import SharedRows, prepare, shared_rows

pytestmark = pytest.mark.django_db


class Item:
    def __init__(self, *names):
        self.fixturenames = names


def test_rows_are_built_again_when_they_are_old(django_db_blocker):
    built = []
    rows = SharedRows("x", lambda: built.append(OrganizationFactory(slug="built").pk), django_db_blocker, 60.0)
    rows.ensure()
    rows.ensure()
    assert len(built) == 1
    rows._max_age = -1.0
    rows.ensure()
    assert list(Organization.objects.filter(slug="built").values_list("pk", flat=True)) == built[1:]
    rows.discard()
    assert not Organization.objects.filter(slug="built").exists()


def test_a_test_that_does_not_request_them_has_none(django_db_blocker):
    with shared_rows("x", lambda: OrganizationFactory(slug="built"), django_db_blocker):
        assert Organization.objects.filter(slug="built").exists()
        prepare(Item("y"))
        assert not Organization.objects.filter(slug="built").exists()
        prepare(Item("x"))
        assert Organization.objects.filter(slug="built").exists()
    assert not Organization.objects.filter(slug="built").exists()


@pytest.fixture(scope="module")
def rows(django_db_setup, django_db_blocker):
    with shared_rows("wanted", lambda: OrganizationFactory(slug="shared"), django_db_blocker) as found:
        yield found


@pytest.fixture
def wanted(rows):
    return rows.value


@pytest.mark.parametrize("test", ["first", "second"])
def test_a_change_is_of_one_test(wanted, test):
    assert [row.slug for row in Organization.objects.all()] == ["shared"]
    Organization.objects.update(slug=test)
    OrganizationFactory(slug="other")
