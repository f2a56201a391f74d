"""Writes the changes of an operation with one statement: the SQL function `write_changes`.

The rows of a table travel as one JSON array. So the statement binds one value for each table instead of one for each
column of each row, and PostgreSQL reads JSON faster than the values could be quoted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import orjson
from django.db import DatabaseError, connection
from django.db.models import Model

from leases.fencing import RowVersions
from leases.models import Lease
from leases.scheduling import submit_quotas
from leases.scheduling.claims import UNREAD_JOB_FIELDS, AttachedClaim
from leases.scheduling.lanes import LaneUpdates
from runtime_jobs.db_errors import sqlstate_of
from runtime_jobs.events import EventRow
from runtime_jobs.models import IdempotencyKey, Job, JobEvent
from runtime_jobs.prepared_queries import PreparedQuery, Sql, fetch_all
from runtime_jobs.written_columns import changed_fields, inserted_fields

_CHANGED = "OC001"  # the SQLSTATE of write_changes
_WRITE = """SELECT written.* FROM {source} write_changes(
    %s::bigint[], %s::xid[], %s::bigint[], %s::xid[], %s::timestamptz, %s::json, %s::json, %s::json, %s::json,
    %s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb, %s::json, {condition} %s::boolean, %s::json, %s::bigint[],
    %s::bigint[], %s::bigint[], %s::timestamptz[], %s::bigint[]) written"""
_WRITE_ROWS = _WRITE.format(source="", condition="")
# The function depends on the row of `bind_keys`, so PostgreSQL does not call it if the keys are bound already.
_BIND_AND_WRITE = _WRITE.format(
    source="bind_keys(%s::json) bound(is_new) CROSS JOIN LATERAL", condition="bound.is_new AND"
)
_KEY_COLUMNS = ("principal", "operation", "key", "fingerprint", "result_id", "created_at")


@dataclass
class Changes:
    """The rows to write.

    Attributes:
        new_jobs: Jobs to insert. Each gets its key as `pk`.
        new_leases: Leases to insert. Each gets its key as `pk`.
        events: Events to insert, in order.
        jobs: Jobs to update.
        leases: Leases to update.
        relocated: Keys of the updated jobs that have a new priority and lane.
        rows: Other rows to insert, of models that are `WRITTEN_WITH_CHANGES`. They get no key.
        pools: Pools that have more work than before, after the write. To be announced to other processes after the
            commit.
    """

    new_jobs: Sequence[Job] = ()
    new_leases: Sequence[Lease] = ()
    events: Sequence[EventRow] = ()
    jobs: Sequence[Job] = ()
    leases: Sequence[Lease] = ()
    relocated: Collection[int] = field(default_factory=set)
    rows: Sequence[Model] = ()
    pools: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.new_jobs or self.new_leases or self.events or self.jobs or self.leases or self.rows)


def write_changes(
    changes: Changes,
    *,
    lanes: LaneUpdates | None = None,
    versions: RowVersions | None = None,
    keys: Sequence[IdempotencyKey] = (),
) -> bool:
    """Write rows, and then quotas and lanes if they are given.

    Leases are written in the order of their keys, in which all operations lock them.

    Args:
        changes: The rows.
        lanes: The lane updates. None if the transaction writes more rows afterwards.
        versions: The versions of all changed rows, if they were read without a lock.
        keys: New idempotency keys to insert before the rows. Waits for a transaction that inserts the same key.

    Returns:
        False if a changed row has another version than in `versions`, or if a key exists. Nothing was written then.

    Raises:
        DatabaseError: A changed row does not exist. Callers hold its lock, so this is a programming error.
        QuotaChanged: The quota of an organization is short.
    """
    statement, values = _WRITE_ROWS, _values(changes, lanes, versions)
    if keys:
        rows = [{name: getattr(key, name) for name in _KEY_COLUMNS} for key in keys]
        rows.sort(key=lambda row: (row["principal"], row["operation"], row["key"]))
        statement, values = _BIND_AND_WRITE, [_to_array(rows), *values]
    try:
        with submit_quotas.short_quotas():
            row = next(iter(fetch_all(statement, values)), None)
    except DatabaseError as error:
        if _is_change(error):
            return False
        raise
    if row is None or row[0]:
        return False
    _, job_names, job_keys, lease_names, lease_keys, pools = row
    changes.pools = pools or ()
    _assign_keys(changes.new_jobs, "job_ulid", job_names, job_keys)
    _assign_keys(changes.new_leases, "lease_ulid", lease_names, lease_keys)
    return True


@dataclass(frozen=True)
class WrittenAndClaimed:
    """The row of `write_and_claim`."""

    job: Job | None
    lease: Lease | None
    is_changed: Annotated[bool, Sql("c.is_changed")]
    job_names: Annotated[list[str], Sql("c.job_names")]
    job_keys: Annotated[list[int], Sql("c.job_keys")]
    lease_names: Annotated[list[str], Sql("c.lease_names")]
    lease_keys: Annotated[list[int], Sql("c.lease_keys")]
    pools: Annotated[list[str], Sql("c.pools")]
    outcome: Annotated[str | None, Sql("c.outcome")]


_WRITE_AND_CLAIM = PreparedQuery(
    WrittenAndClaimed,
    "CROSS JOIN LATERAL (SELECT (c.lease).*) lease",
    source="""write_and_claim(
        %s::bigint[], %s::xid[], %s::bigint[], %s::xid[], %s::timestamptz, %s::json, %s::json, %s::json, %s::json,
        %s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb, %s::json, %s::boolean, %s::json, %s::bigint[],
        %s::bigint[], %s::bigint[], %s::timestamptz[], %s::bigint[], %s::bigint, %s, %s, %s::text[], %s::text[], %s,
        %s::text[], %s::boolean, %s, %s::text[], %s::timestamptz) c CROSS JOIN LATERAL (SELECT (c.job).*) t""",
    without=UNREAD_JOB_FIELDS,
)


def write_and_claim(
    changes: Changes, claim: AttachedClaim, *, lanes: LaneUpdates, versions: RowVersions | None = None
) -> bool:
    """Write rows, quotas and lanes as `write_changes` does, and then claim a job, by one statement.

    Args:
        changes: The rows.
        claim: The claim, which receives its result.
        lanes: The lane updates.
        versions: The versions of all changed rows, if they were read without a lock.

    Returns:
        False if a changed row has another version than in `versions`. Nothing was written or claimed then.
    """
    try:
        with submit_quotas.short_quotas():
            (row,) = _WRITE_AND_CLAIM.all(*_values(changes, lanes, versions), *claim.values())
    except DatabaseError as error:
        if _is_change(error):
            return False
        raise
    if row.is_changed:
        return False
    claim.receive(row.outcome, row.job, row.lease)
    changes.pools = row.pools or ()
    _assign_keys(changes.new_jobs, "job_ulid", row.job_names, row.job_keys)
    _assign_keys(changes.new_leases, "lease_ulid", row.lease_names, row.lease_keys)
    return True


def _values(changes: Changes, lanes: LaneUpdates | None, versions: RowVersions | None) -> list[Any]:
    """Return the arguments of `write_changes`."""
    compared: list[Any] = [None] * 5 if versions is None else _compared(changes, versions)
    return [
        *compared,
        _to_array(_new_rows(changes.new_jobs, Job)),
        _to_array(_new_rows(changes.new_leases, Lease)),
        *_one_or_many(_new_rows(changes.events, JobEvent)),
        *_one_or_many(_changed_jobs(changes)),
        *_one_or_many([_changed_row(lease, _changed_columns(Lease)) for lease in sorted(changes.leases, key=_pk)]),
        _rows_by_table(changes.rows),
        *_lane_values(lanes),
    ]


def _is_change(error: DatabaseError) -> bool:
    return sqlstate_of(error) == _CHANGED


def _compared(changes: Changes, versions: RowVersions) -> list[Any]:
    """Return the keys and versions of the rows to lock and compare."""
    jobs, leases = versions.of_jobs(changes.jobs), versions.of_leases(changes.leases)
    return [*_columns(jobs, 2), *_columns(leases, 2), versions.live_until]


def _lane_values(lanes: LaneUpdates | None) -> list[Any]:
    if lanes is None:
        return [False, None, None, None, None, None, None]
    arrived = sorted((org_slug, arrivals) for org_slug, arrivals in lanes.arrivals.items() if arrivals.jobs)
    quotas = orjson.dumps([arrivals.to_take(org_slug) for org_slug, arrivals in arrived]).decode() if arrived else None
    return [True, quotas, lanes.freed or None, *_columns(lanes.entered, 3), lanes.kept or None]


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any] | None]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [None] * width


def _assign_keys(rows: Sequence[Job | Lease], name: str, names: list[str], keys: list[int]) -> None:
    """Give each new row its key.

    PostgreSQL promises no order of keys within one INSERT, so a row is recognized by its public id.
    """
    if not rows:
        return
    key_of = dict(zip(names, keys, strict=True))
    for row in rows:
        row.pk = key_of[getattr(row, name)]
        row._state.adding, row._state.db = False, connection.alias  # noqa: SLF001 as Model.save does


@cache
def _inserted_columns(model: type[Model]) -> tuple[tuple[str, str], ...]:
    """Return pairs of attribute and column of a new row."""
    return tuple((field.attname, field.column) for field in inserted_fields(model))


@cache
def _changed_columns(model: type[Model]) -> tuple[tuple[str, str], ...]:
    """Return pairs of attribute and column of a changed row, without those that move a job to another lane."""
    fields = [field for field in changed_fields(model) if field.attname not in Job.LANE_FIELDS]
    return tuple((field.attname, field.column) for field in fields)


def _new_rows(rows: Sequence[Any], model: type[Model]) -> list[dict[str, Any]]:
    columns = _inserted_columns(model)
    return [_new_row(vars(row), columns) for row in rows]


def _new_row(values: dict[str, Any], columns: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the columns of a new row. None is left out: PostgreSQL makes it NULL."""
    return {column: values[name] for name, column in columns if values[name] is not None}


def _changed_jobs(changes: Changes) -> list[dict[str, Any]]:
    rows = [_changed_row(job, _changed_columns(Job)) for job in changes.jobs]
    for job, row in zip(changes.jobs, rows, strict=True) if changes.relocated else ():
        if job.pk in changes.relocated:
            row |= {name: getattr(job, name) for name in Job.LANE_FIELDS}
    return rows


def _changed_row(row: Job | Lease, columns: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the key and the columns of a changed row, also those that are None.

    A column that is absent keeps its value: of a row that was read without it, it has not changed.
    """
    values = vars(row)
    return {"id": values["id"]} | {column: values[name] for name, column in columns if name in values}


def _to_array(rows: list[dict[str, Any]]) -> str | None:
    """Return the rows as a JSON array, None without rows."""
    return orjson.dumps(rows).decode() if rows else None


def _rows_by_table(rows: Sequence[Model]) -> str | None:
    """Return the rows as a JSON object with an array for each table, None without rows."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        table = row._meta.db_table  # noqa: SLF001 Django's name for it
        found.setdefault(table, []).append(_new_row(vars(row), _inserted_columns(type(row))))
    return orjson.dumps(found).decode() if found else None


def _one_or_many(rows: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """Return the only row as a JSON object, or many rows as a JSON array. The other one is None."""
    if len(rows) == 1:
        return orjson.dumps(rows[0]).decode(), None
    return None, _to_array(rows)


def _pk(row: Lease) -> int:
    return row.pk
