"""Secrets and variables: scopes, names, limits, the snapshot of a claim, and the audit log without values."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from orchestrator.core.cause import Cause
from orchestrator.core.sealing import SealedValueError, unseal
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.secrets.masks import MaskCache, masks_of
from orchestrator.secrets.operations import delete_secret, delete_variable, set_secret, set_variable, snapshot_secrets
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.models import Job, MaskSnapshot, OperatorEvent, Secret, Variable
from runtime_jobs.models.secrets import MAX_PER_SCOPE, MAX_VALUE_BYTES
from tests.factories import ALICE, OrganizationFactory, ProjectFactory
from tests.workflow_jobs import claimed_workflow_job, make_repository

pytestmark = pytest.mark.django_db
VALUE = "hunter2-correct-horse"


@pytest.fixture
def repository(db):
    return make_repository()


@pytest.fixture
def organization(repository):
    return repository.project.organization


def put(organization, repository=None, name="TOKEN", value=VALUE):
    return set_secret(organization=organization, repository=repository, name=name, value=value, cause=Cause(ALICE))


def put_variable(organization, repository=None, name="REGION", value="eu"):
    return set_variable(organization=organization, repository=repository, name=name, value=value, cause=Cause(ALICE))


@operation
def snapshot(uow: UnitOfWork, found, **options):
    """Snapshot as the claim does: in a transaction, with the job as the claim returned it."""
    return snapshot_secrets(uow, found.job, found.run, **options)


class TestSet:
    def test_the_row_has_no_byte_of_the_value(self, organization, repository):
        row, is_new = put(organization, repository)
        assert is_new
        with connection.cursor() as cursor:
            cursor.execute("SELECT row_to_json(s)::text FROM runtime_secrets s")
            stored = cursor.fetchone()[0]
        assert VALUE not in stored
        assert VALUE.encode().hex() not in stored
        assert unseal("secret", row.sealed, context=row.sealing_context).decode() == VALUE

    def test_a_name_in_another_case_is_the_same_secret(self, organization, repository):
        first, _ = put(organization, repository, "Token", "one")
        second, is_new = put(organization, repository, "TOKEN", "two")
        assert (second.pk, is_new, Secret.objects.get().name) == (first.pk, False, "TOKEN")
        row = Secret.objects.get()
        assert unseal("secret", row.sealed, context=row.sealing_context) == b"two"

    def test_the_scopes_are_apart(self, organization, repository):
        put(organization, None)
        put(organization, repository)
        put(organization, make_repository(repository.project, name="other"))
        assert Secret.objects.count() == 3

    def test_the_database_itself_refuses_a_second_row_of_a_name(self, organization, repository):
        row, _ = put(organization, repository, "Token")
        with pytest.raises(IntegrityError, match="one_secret_per_repository_name"), transaction.atomic():
            Secret.objects.create(
                organization=organization, repository=repository, name="TOKEN", sealed=b"x", updated_by="x",
                created_at=row.created_at, updated_at=row.updated_at,
            )  # fmt: skip

    def test_a_sealed_row_does_not_open_under_another_name_or_scope(self, organization, repository):
        row, _ = put(organization, repository)
        other, _ = put(organization, None)
        for changes in ({"name": "OTHER"}, {"repository": None}):
            moved = Secret(organization=organization, repository=repository, name="TOKEN", sealed=row.sealed)
            for name, value in changes.items():
                setattr(moved, name, value)
            with pytest.raises(SealedValueError):
                unseal("secret", moved.sealed, context=moved.sealing_context)
        Secret.objects.filter(pk=other.pk).update(sealed=row.sealed)
        other.refresh_from_db()
        with pytest.raises(SealedValueError):
            unseal("secret", other.sealed, context=other.sealing_context)

    @pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "Ä", "A" * 101, "A\n"])
    def test_a_bad_name_is_refused(self, organization, name):
        with pytest.raises(Invalid) as caught:
            put(organization, None, name)
        assert set(caught.value.errors) == {"name"}

    @pytest.mark.parametrize("value", ["", "x" * (MAX_VALUE_BYTES + 1), "ä" * (MAX_VALUE_BYTES // 2 + 1), "a\0b"])
    def test_a_bad_value_is_refused_without_naming_it(self, organization, value):
        with pytest.raises(Invalid) as caught:
            put(organization, None, "A", value)
        assert set(caught.value.errors) == {"value"}
        assert value[:20] not in str(caught.value.errors) or not value

    def test_the_largest_and_the_smallest_value_are_accepted(self, organization):
        put(organization, None, "A", "x" * MAX_VALUE_BYTES)
        put(organization, None, "B", "x")
        assert Secret.objects.count() == 2

    def test_a_variable_contains_no_expression(self, organization):
        with pytest.raises(Invalid, match="not valid") as caught:
            put_variable(organization, value="a ${{ secrets.TOKEN }}")
        assert "${{" in caught.value.errors["value"][0]
        assert not Variable.objects.exists()

    def test_the_repository_of_another_organization_is_not_found(self, repository):
        stranger = OrganizationFactory()
        with pytest.raises(NotFound):
            put(stranger, repository)

    def test_a_scope_has_at_most_100_names(self, organization, repository):
        for number in range(MAX_PER_SCOPE):
            put(organization, repository, f"A{number}", "x")
        with pytest.raises(ResourceConflict, match="has 100 secrets"):
            put(organization, repository, "ONE_MORE")
        put(organization, repository, "a5", "changed")  # a name that exists
        put(organization, None, "OTHER_SCOPE")
        put_variable(organization, repository)


class TestDelete:
    def test_a_deleted_secret_is_gone(self, organization, repository):
        put(organization, repository)
        delete_secret(organization=organization, repository=repository, name="token", cause=Cause(ALICE))
        assert not Secret.objects.exists()
        with pytest.raises(NotFound):
            delete_secret(organization=organization, repository=repository, name="token", cause=Cause(ALICE))

    def test_that_of_the_organization_stays(self, organization, repository):
        put(organization, None)
        with pytest.raises(NotFound):
            delete_secret(organization=organization, repository=repository, name="TOKEN", cause=Cause(ALICE))
        assert Secret.objects.count() == 1


def test_each_change_is_an_event_without_the_value(organization, repository):
    put(organization, repository)
    put(organization, repository, value="another-value")
    delete_secret(organization=organization, repository=repository, name="TOKEN", cause=Cause(ALICE, "old"))
    put_variable(organization, None, value="eu-central-1")
    delete_variable(organization=organization, repository=None, name="REGION", cause=Cause(ALICE))
    events = list(OperatorEvent.objects.order_by("pk"))
    assert [event.action for event in events] == [
        "secret.created", "secret.changed", "secret.deleted", "variable.created", "variable.deleted",
    ]  # fmt: skip
    assert events[0].target == f"secret:{organization.slug}/alice/demo/TOKEN"
    assert events[0].after == {"name": "TOKEN", "repository": "alice/demo"}
    assert (events[2].before, events[2].after, events[2].reason) == (events[0].after, None, "old")
    text = json.dumps([[event.before, event.after, event.target] for event in events])
    assert not [value for value in (VALUE, "another-value", "eu-central-1") if value in text]


class TestSnapshot:
    def test_the_repository_wins_over_the_organization_whatever_the_case(self, organization, repository):
        put(organization, None, "TOKEN", "of-organization")
        put(organization, None, "SHARED", "shared-value")
        put(organization, repository, "Token", "of-repository")
        put(organization, make_repository(repository.project, name="other"), "OTHER", "not-visible")
        put_variable(organization, None, "REGION", "us")
        put_variable(organization, repository, "region", "eu")
        found = snapshot(claimed_workflow_job(repository))
        assert found.secrets == {"SHARED": "shared-value", "Token": "of-repository"}
        assert found.variables == {"region": "eu"}
        assert found.masks == ["of-repository", "shared-value"]

    def test_another_organization_gives_nothing(self, repository):
        put(OrganizationFactory(), None)
        found = snapshot(claimed_workflow_job(repository))
        assert (found.secrets, found.variables, found.masks) == ({}, {}, [])

    def test_a_pull_request_gets_nothing(self, organization, repository):
        put(organization, repository)
        put_variable(organization, repository)
        claimed = claimed_workflow_job(repository, event="pull_request")
        found = snapshot(claimed, more_masks=["request-token"])
        assert (found.secrets, found.variables, found.masks) == ({}, {}, ["request-token"])
        assert masks_of(claimed.job) == (b"request-token",)

    def test_what_was_handed_out_stays_masked(self, organization, repository):
        put(organization, repository)
        claimed = claimed_workflow_job(repository)
        snapshot(claimed)
        put(organization, repository, value="rotated-value")
        delete_secret(organization=organization, repository=repository, name="TOKEN", cause=Cause(ALICE))
        assert masks_of(Job.objects.get(pk=claimed.job.pk)) == (VALUE.encode(),)

    def test_the_snapshot_has_no_byte_of_the_values_and_belongs_to_its_job(self, organization, repository):
        put(organization, repository)
        first, second = claimed_workflow_job(repository), claimed_workflow_job(repository)
        snapshot(first)
        snapshot(second)
        rows = list(MaskSnapshot.objects.order_by("pk"))
        assert not [row for row in rows if VALUE.encode() in bytes(row.sealed)]
        MaskSnapshot.objects.filter(pk=rows[1].pk).update(sealed=rows[0].sealed)
        with pytest.raises(SealedValueError):
            masks_of(second.job)

    def test_an_empty_snapshot_is_stored(self, organization, repository):
        """A secret that is set after the claim is not masked, whoever prints the same text."""
        claimed = claimed_workflow_job(repository)
        snapshot(claimed)
        put(organization, repository)
        assert MaskSnapshot.objects.count() == 1
        assert masks_of(claimed.job) == ()

    def test_a_later_claim_replaces_it(self, organization, repository):
        put(organization, repository, value="first-value")
        claimed = claimed_workflow_job(repository)
        snapshot(claimed)
        assert masks_of(claimed.job) == (b"first-value",)
        put(organization, repository, value="second-value")
        claimed.job.fence += 1
        snapshot(claimed)
        assert MaskSnapshot.objects.count() == 1
        assert masks_of(claimed.job) == (b"second-value",)
        MaskSnapshot.objects.all().delete()  # the audit would miss the lease of this fence

    def test_a_secret_that_does_not_open_is_an_error_and_leaves_nothing(self, organization, repository):
        put(organization, repository)
        Secret.objects.update(sealed=b"\x01" + b"x" * 60)
        claimed = claimed_workflow_job(repository)
        with pytest.raises(SealedValueError) as caught:
            snapshot(claimed)
        assert VALUE not in str(caught.value)
        assert not MaskSnapshot.objects.exists()

    def test_a_job_without_a_claim_has_no_masks(self, repository):
        assert masks_of(claimed_workflow_job(repository).job) == ()

    def test_a_claim_reads_and_writes_with_three_statements(self, organization, repository, django_assert_num_queries):
        for number in range(20):
            put(organization, repository, f"A{number}", f"value-{number}")
        claimed = claimed_workflow_job(repository)
        uow = UnitOfWork()
        with django_assert_num_queries(3):
            snapshot_secrets(uow, claimed.job, claimed.run, now=claimed.lease.leased_at)

    def test_the_masks_of_a_log_are_read_once(self, organization, repository, django_assert_num_queries):
        put(organization, repository)
        claimed = claimed_workflow_job(repository)
        snapshot(claimed)
        assert masks_of(claimed.job) == (VALUE.encode(),)
        with django_assert_num_queries(0):
            assert masks_of(claimed.job) == (VALUE.encode(),)


def test_the_cache_of_masks_is_bounded():
    cache = MaskCache(max_bytes=1000)
    for number in range(10):
        cache.put(("job", number), (b"x" * 150,))
    kept = [number for number in range(10) if cache.get(("job", number)) is not None]
    assert kept == [8, 9]
    cache.put(("large", 0), (b"x" * 5000,))  # larger than all: kept alone
    assert cache.get(("large", 0)) is not None
    assert cache.get(("job", 9)) is None


@pytest.mark.django_db(transaction=True)
def test_concurrent_changes_do_not_pass_the_limit_of_a_scope():
    project = ProjectFactory()
    organization = project.organization
    for number in range(MAX_PER_SCOPE - 1):
        put(organization, None, f"A{number}", "x")
    barrier = threading.Barrier(4)

    def add(number):
        try:
            barrier.wait(60)
            put(organization, None, f"NEW{number}", "x")
        except ResourceConflict:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(add, range(4))) == [False, False, False, True]
    assert Secret.objects.count() == MAX_PER_SCOPE
