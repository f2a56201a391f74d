"""The columns that `write_changes` writes are those of the models and of the operations."""

import re

import pytest
from django.db.models import NOT_PROVIDED

from leases.models import Lease
from leases.sql_functions import DIRECTORY
from orchestrator.services.bulk_write import LANE_FIELDS, UPDATED_JOB_FIELDS, UPDATED_LEASE_FIELDS
from runtime_jobs.models import Job, JobEvent

SQL = (DIRECTORY / "write.sql").read_text()


def columns(text: str) -> list[str]:
    return re.findall(r"\w+", text)


# No operation replays a job; the announcement of an artifact marks the row at once.
NOT_YET_WRITTEN = {"replay_of_job_ulid", "has_artifacts"}


@pytest.mark.parametrize("model", [Job, Lease, JobEvent], ids=lambda model: model.__name__)
def test_an_insert_names_every_column_that_the_database_does_not_compute(model):
    table = model._meta.db_table
    inserts = re.findall(rf"INSERT INTO {table} \(([^)]*)\)\s+(?:SELECT|VALUES \()([^;]*?)(?:FROM|\);)", SQL)
    expected = [
        field.column
        for field in model._meta.concrete_fields
        if not (field.generated or field.primary_key or field.db_default is not NOT_PROVIDED)
        and field.column not in NOT_YET_WRITTEN
    ]
    assert inserts
    for named, selected in inserts:
        assert columns(named) == columns(selected.replace("new_event.", ""))
        assert sorted(columns(named)) == sorted(expected)


@pytest.mark.parametrize(
    ("table", "attributes"),
    [("runtime_jobs", {*UPDATED_JOB_FIELDS, *LANE_FIELDS}), ("runtime_worker_leases", set(UPDATED_LEASE_FIELDS))],
)
def test_an_update_sets_what_operations_change(table, attributes):
    single = re.findall(rf"UPDATE {table} t\s+SET ((?:(?!FROM|UPDATE).)*?)\s+WHERE", SQL, re.DOTALL)
    assert single
    for assignments in single:
        assert {"id", "ingest_run_id", *re.findall(r"(\w+) = ", assignments)} == attributes | {"ingest_run_id"}
    updates = re.findall(
        rf"UPDATE {table} t\s+SET ((?:(?!UPDATE).)*?)\s+FROM json_to_recordset\(\w+\) AS v\((.*?)\)\s+WHERE",
        SQL,
        re.DOTALL,
    )
    assert updates
    for assignments, record in updates:
        given = re.findall(r"(\w+) (?:\w+)(?:\[\])?(?:,|$)", " ".join(record.split()))
        assert {"id", *re.findall(r"(\w+) = ", assignments)} == set(given)
        assert set(given) | {"ingest_run_id"} == attributes | ({"ingest_run_id"})
