"""`write_changes` stores the columns of the models, keeps what its caller does not name, and blocks no referring row."""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models, transaction

from leases.models import Lease
from orchestrator.core.bulk_write import Changes, write_changes
from runtime_jobs.models import Artifact, Job, UsageRecord
from runtime_jobs.written_columns import changed_fields, inserted_fields, is_written_with_changes
from tests.factories import claimed, submitted

pytestmark = pytest.mark.django_db
# A row with any value in these is of another state, which the triggers refuse.
OF_THE_STATE = {"state", "finished_at", "completed_at", "failure_reason", "failure_class", "ingest_run_id"}
KEPT_KEYS = {"job_ulid", "job_id", "batch_id"}
FIRST = datetime(2030, 1, 2, 3, 4, 5, 678, UTC)


def other_value(field: models.Field, number: int) -> object:
    """A value that no default is."""
    if isinstance(field, models.BooleanField):
        return not field.get_default()
    if isinstance(field, models.DateTimeField):
        return FIRST.replace(second=number % 60)
    if isinstance(field, models.JSONField):
        return {"number": number, "text": 'ö "'}
    if isinstance(field, ArrayField):
        return [f"v{number}"]
    if isinstance(field, models.UUIDField):
        return UUID(int=number)
    if isinstance(field, models.FloatField):
        return number / 7
    if isinstance(field, models.GenericIPAddressField):
        return "2001:db8::1"
    if isinstance(field, models.ForeignKey):
        return other_value(field.target_field, number)
    return number if isinstance(field, models.IntegerField) else f"v{number}"


def with_other_values(row, fields):
    """Give each of these columns of the row a value of its own."""
    free = [field for field in fields if field.attname not in OF_THE_STATE | KEPT_KEYS]
    for number, field in enumerate(free, 5):
        setattr(row, field.attname, other_value(field, number))
    if isinstance(row, Job):
        row.max_requeues, row.automatic_retries = 500, 500
    return {field.attname: getattr(row, field.attname) for field in fields}


def stored(row, values):
    return type(row).objects.filter(pk=row.pk).values(*values).get()


def test_an_insert_stores_every_column_of_a_job():
    job = Job(job_ulid="rtj_01j00000000000000000000001", priority=1, state="queued")
    values = with_other_values(job, inserted_fields(Job))
    assert write_changes(Changes(new_jobs=[job]))
    assert stored(job, values) == values
    assert {"replay_of_job_ulid", "has_artifacts"} < set(values)


def test_an_insert_stores_every_column_of_a_lease():
    lease = Lease(lease_ulid="rtl_01j00000000000000000000001", state="active", job=submitted())
    values = with_other_values(lease, inserted_fields(Lease))
    assert write_changes(Changes(new_leases=[lease]))
    assert stored(lease, values) == values


def test_rows_of_other_tables_are_stored_with_every_column():
    """A row of each model that is written with changes. Keys of rows that do not exist are refused at the commit."""
    written = [model for model in apps.get_models() if is_written_with_changes(model)]
    assert {model.__name__ for model in written} == {"UsageRecord", "Metric", "ReportResult"}
    rows = [model() for model in written]
    values = [with_other_values(row, inserted_fields(type(row))) for row in rows]
    for row, expected in zip(rows, values, strict=True):
        if isinstance(row, UsageRecord):
            row.minutes = expected["minutes"] = 1
    with transaction.atomic():
        assert write_changes(Changes(rows=rows))
        for row, expected in zip(rows, values, strict=True):
            assert type(row).objects.values(*expected).get() == expected
        transaction.set_rollback(True)


@pytest.mark.parametrize("number", [1, 2])
def test_an_update_stores_every_changed_column(number):
    rows = [submitted() for _ in range(number)]
    values = [with_other_values(job, changed_fields(Job)) for job in rows]
    Job.objects.update(max_requeues=500, automatic_retries=500)
    assert write_changes(Changes(jobs=rows, relocated={job.pk for job in rows}))
    assert [stored(job, names) for job, names in zip(rows, values, strict=True)] == values


@pytest.mark.parametrize("number", [1, 2])
def test_an_update_of_leases_stores_every_changed_column(number):
    for _ in range(number):
        submitted()
    rows = [claimed().lease for _ in range(number)]
    values = [with_other_values(lease, changed_fields(Lease)) for lease in rows]
    assert write_changes(Changes(leases=rows))
    assert [stored(lease, names) for lease, names in zip(rows, values, strict=True)] == values


@pytest.mark.parametrize("number", [1, 2])
def test_an_update_empties_what_is_none(number):
    rows = [submitted() for _ in range(number)]
    Job.objects.update(progress={"step": 1}, cancel_message="late")
    for job in rows:
        job.progress = job.cancel_message = None
    assert write_changes(Changes(jobs=rows))
    assert set(Job.objects.values_list("progress", "cancel_message")) == {(None, None)}


@pytest.fixture
def cursor(db):
    with connection.cursor() as cursor:
        yield cursor


ARGUMENTS = (
    *("p_job_ids", "p_job_versions", "p_lease_ids", "p_lease_versions", "p_live_until", "p_new_jobs", "p_new_leases"),
    *("p_event", "p_events", "p_job", "p_jobs", "p_lease", "p_leases", "p_rows", "p_finish", "p_quotas", "p_freed"),
    *("p_entered", "p_entered_lanes", "p_entered_at", "p_kept"),
)


def call(cursor, **rows):
    """Call the function as a process does that does not know all columns."""
    values = ", ".join("%s" if name in rows else "false" if name == "p_finish" else "NULL" for name in ARGUMENTS)
    cursor.execute(f"SELECT write_changes({values})", [json.dumps(rows[name]) for name in ARGUMENTS if name in rows])


def test_what_the_caller_does_not_name_keeps_its_value(cursor):
    job = submitted()
    Job.objects.update(progress={"step": 1}, cancel_message="late", exit_code=7)
    call(cursor, p_job={"id": job.pk, "log_bytes": 5, "exit_code": None})
    call(cursor, p_jobs=[{"id": job.pk, "release_count": 2}])
    kept = ("state", "progress", "cancel_message", "exit_code", "log_bytes", "release_count")
    assert Job.objects.values_list(*kept).get() == ("queued", {"step": 1}, "late", None, 5, 2)


def test_what_the_caller_does_not_name_of_a_lease_keeps_its_value(cursor):
    submitted()
    lease = claimed().lease
    Lease.objects.update(final_digest="d" * 64)
    call(cursor, p_lease={"id": lease.pk, "ended_reason": "none"})
    call(cursor, p_leases=[{"id": lease.pk, "acknowledged_at": FIRST.isoformat()}])
    assert Lease.objects.values_list("state", "final_digest", "ended_reason", "acknowledged_at").get() == (
        *("active", "d" * 64, "none"),
        FIRST,
    )


def test_a_new_row_gets_the_defaults_of_the_database(cursor):
    job = submitted()
    row = Job.objects.filter(pk=job.pk).values(*(field.column for field in inserted_fields(Job))).get()
    del row["has_artifacts"]
    row |= {"job_ulid": "rtj_01j00000000000000000000002"}
    call(cursor, p_new_jobs=[json.loads(json.dumps(row, default=str))])
    assert list(Job.objects.order_by("pk").values_list("has_artifacts", flat=True)) == [False, False]


@pytest.mark.django_db(transaction=True)
def test_an_update_does_not_wait_for_a_row_that_refers_to_the_job():
    job = submitted()
    other = connection.copy()
    try:
        with transaction.atomic():
            Artifact.objects.create(job=job, uri="s3://bucket/a", type="log", created_at=FIRST)
            with connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # the check locks the job
            other.set_autocommit(False)
            with other.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
                call(cursor, p_job={"id": job.pk, "log_bytes": 5})
            other.commit()
    finally:
        other.close()
    assert Job.objects.get().log_bytes == 5


def test_no_changed_column_is_of_a_whole_unique_index():
    for model in (Job, Lease):
        whole = {field.name for field in model._meta.concrete_fields if field.unique}
        for constraint in model._meta.constraints:
            if isinstance(constraint, models.UniqueConstraint) and constraint.condition is None:
                whole |= set(constraint.fields)
        assert whole.isdisjoint(field.name for field in changed_fields(model)), model
