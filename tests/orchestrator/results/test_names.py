"""Branches, testbeds, benchmarks and measures: found by name, UUID or slug, else created once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from orchestrator.core.cause import Cause
from orchestrator.results import models, names
from orchestrator.results.names import UnknownResource
from orchestrator.services import hardware_specs
from tests.factories import OPERATOR, HardwareSpecFactory, ProjectFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return ProjectFactory()


def test_a_new_name_is_created_and_found_by_name_slug_and_uuid(project):
    made = names.get_or_create_testbed(project, "Linux Box")
    assert (made.name, made.slug, made.project) == ("Linux Box", "linux-box", project)
    for key in ("Linux Box", "linux-box", str(made.uuid)):
        assert names.get_or_create_testbed(project, key) == made
    assert models.Testbed.objects.count() == 1


def test_a_name_beats_a_slug(project):
    first = names.get_or_create_branch(project, "Main")
    second = models.Branch.objects.create(project=project, name="main", slug="other")
    assert first.slug == "main"
    assert names.get_or_create_branch(project, "main") == second


def test_a_slug_that_is_taken_gets_a_suffix(project):
    first = names.get_or_create_branch(project, "feature/a")
    second = names.get_or_create_branch(project, "feature_a!")
    assert first.slug == "feature-a"
    assert second.slug.startswith("feature-a-")
    assert names.get_or_create_branch(project, "feature_a!") == second


def test_a_name_without_any_letter_of_ascii_has_a_slug(project):
    assert names.get_or_create_branch(project, "日本語").slug


def test_an_unknown_uuid_creates_nothing(project):
    with pytest.raises(UnknownResource, match="no testbed with the UUID"):
        names.get_or_create_testbed(project, "00000000-0000-0000-0000-000000000099")
    assert not models.Testbed.objects.exists()


def test_names_of_other_projects_are_not_found(project):
    other = ProjectFactory(slug="other")
    made = names.get_or_create_testbed(other, "box")
    assert names.get_or_create_testbed(project, "box") != made
    with pytest.raises(UnknownResource):
        names.get_or_create_testbed(project, str(made.uuid))


def test_built_in_measures_have_their_units(project):
    found = names.measure_keys(project, ["latency", "Throughput", "build-time", "file-size", "my measure"])
    rows = models.Measure.objects.in_bulk(found.values())
    assert {key: (rows[pk].name, rows[pk].slug, rows[pk].units) for key, pk in found.items()} == {
        "latency": ("Latency", "latency", "nanoseconds (ns)"),
        "Throughput": ("Throughput", "throughput", "operations / second (ops/s)"),
        "build-time": ("Build Time", "build-time", "seconds (s)"),
        "file-size": ("File Size", "file-size", "bytes (B)"),
        "my measure": ("my measure", "my-measure", "Measure (units)"),
    }


def test_a_benchmark_that_raises_no_alert_has_the_name_without_its_end(project):
    keys = ["fib", "fib_bencher_ignore", "fib-bencher-ignore", "fibBencherIgnore", "BencherIgnore"]
    found = names.benchmark_keys(project, keys)
    assert set(models.Benchmark.objects.values_list("name", flat=True)) == {"fib", "BencherIgnore"}
    assert len(set(found.values())) == 2


def test_many_names_need_few_statements(project, django_assert_max_num_queries):
    keys = [f"benchmark {number}" for number in range(6000)]
    with django_assert_max_num_queries(12):
        assert len(names.benchmark_keys(project, keys)) == 6000
    with django_assert_max_num_queries(2):
        assert len(names.benchmark_keys(project, keys)) == 6000


@pytest.mark.django_db(transaction=True)
def test_an_archived_spec_is_removed_from_testbeds():
    spec = HardwareSpecFactory()
    testbed = names.get_or_create_testbed(ProjectFactory(), "box")
    models.Testbed.objects.update(spec=spec)
    hardware_specs.change_spec(spec_uuid=spec.uuid, archived=True, cause=Cause(OPERATOR))
    testbed.refresh_from_db()
    assert testbed.spec is None
    assert testbed.modified_at > testbed.created_at


@pytest.mark.django_db(transaction=True)
def test_requests_at_the_same_time_create_a_name_once():
    project, begin = ProjectFactory(), threading.Barrier(4, timeout=60)

    def create() -> int:
        try:
            begin.wait()
            return names.get_or_create_testbed(project, "box").pk
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        found = {done.result(60) for done in [pool.submit(create) for _ in range(4)]}
    assert len(found) == 1
    assert models.Testbed.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_requests_at_the_same_time_with_the_same_names_do_not_deadlock(project):
    """Each waits for the names that the other one has inserted."""
    keys = [f"benchmark {number}" for number in range(3000)]
    begin = threading.Barrier(2, timeout=60)

    def create(ordered: list[str]) -> set[int]:
        try:
            begin.wait()
            found = names.find_or_create(models.Benchmark, project, [names._wanted(key) for key in ordered])
            return set(found.values())
        finally:
            connection.close()

    for _ in range(3):
        models.Benchmark.objects.all().delete()
        names.forget_names()
        with ThreadPoolExecutor(2) as pool:
            first, second = (done.result(120) for done in [pool.submit(create, keys), pool.submit(create, keys[::-1])])
        assert first == second
    assert models.Benchmark.objects.count() == 3000


@pytest.mark.django_db(transaction=True)
def test_names_are_read_once_and_those_of_a_failed_transaction_are_not_remembered(project, django_assert_num_queries):
    with transaction.atomic():
        names.benchmark_keys(project, ["a"])
        transaction.set_rollback(True)
    found = names.benchmark_keys(project, ["a"])
    assert found == {"a": models.Benchmark.objects.get().pk}
    with django_assert_num_queries(0):
        assert names.benchmark_keys(project, ["a"]) == found
    # Another server may have taken over, without the last rows: a key may be that of another row now.
    connection.close()
    connection.close_pool()
    models.Benchmark.objects.all().delete()
    assert names.benchmark_keys(project, ["a"]) == {"a": models.Benchmark.objects.get().pk} != found


def test_names_are_inserted_in_one_order(project):
    """The order of a set of strings differs from process to process."""
    names.benchmark_keys(project, ["e", "b", "f", "a c", "D", "A", "c", "a-b"])
    inserted = models.Benchmark.objects.order_by("pk").values_list("name", flat=True)
    assert list(inserted) == ["A", "a-b", "a c", "b", "c", "D", "e", "f"]
