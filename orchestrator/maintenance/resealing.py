"""Seals stored values again with the current root key, and finds values that no known root key opens.

Every column with sealed values is in `SEALED_COLUMNS`. The system may be in use meanwhile: a row that another process
changes at the same time has the current key by that change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import BinaryField, F, Func, Model, QuerySet, Value

from orchestrator.core.sealing import SealedValueError, current_header, seal, unseal
from orchestrator.identity.keys import PURPOSE as IDENTITY_KEY
from orchestrator.repositories.mirrors import CREDENTIAL
from orchestrator.secrets.operations import MASKS, SECRET
from orchestrator.step_logs.step_log_writes import SEALED_LOG, waiting_context
from orchestrator.webhooks.models import Webhook
from orchestrator.webhooks.operations import WEBHOOK_KEY
from runtime_jobs.models import IdentityKey, MaskSnapshot, Repository, Secret, StepLog, WaitingLogChunk

KEYS_PER_QUERY: Final = 1000


@dataclass(frozen=True)
class SealedColumn:
    """A column with sealed values.

    Attributes:
        model: The table.
        column: The column. Null: the row has no such value.
        purpose: The purpose with which the values are sealed.
        context: Returns the context with which the value of a row is sealed.
    """

    model: type[Model]
    column: str
    purpose: str
    context: Callable[[Any], str]

    @property
    def name(self) -> str:
        """The name of the column for people: table and column."""
        return f"{self.model._meta.db_table}.{self.column}"  # noqa: SLF001 Django's name


def _own_context(row: Any) -> str:
    context: str = row.sealing_context
    return context


SEALED_COLUMNS: Final = (
    SealedColumn(Secret, "sealed", SECRET, _own_context),
    SealedColumn(MaskSnapshot, "sealed", MASKS, _own_context),
    SealedColumn(StepLog, "held", SEALED_LOG, _own_context),
    SealedColumn(WaitingLogChunk, "sealed", SEALED_LOG, lambda row: waiting_context(row.step_log, row.seq)),
    SealedColumn(IdentityKey, "sealed", IDENTITY_KEY, lambda row: row.kid),
    SealedColumn(Webhook, "sealed_secret", WEBHOOK_KEY, _own_context),
    SealedColumn(Webhook, "sealed_former_secret", WEBHOOK_KEY, lambda row: row.former_sealing_context),
    SealedColumn(Repository, "sealed_credential", CREDENTIAL, lambda row: row.full_name.lower()),
)


@dataclass
class Resealed:
    """The result for one column.

    Attributes:
        column: The column.
        changed: The number of values that were sealed again.
        unreadable: The keys of rows whose value no known root key opens.
    """

    column: SealedColumn
    changed: int = 0
    unreadable: list[int] = field(default_factory=list)


def reseal(column: SealedColumn) -> Resealed:
    """Seal the values of a column again that were sealed with a former root key. A repetition changes nothing."""
    result = Resealed(column)
    for key in _stale_keys(column):
        row = column.model._default_manager.filter(pk=key).first()  # noqa: SLF001 Django's name
        if row is None or (stored := getattr(row, column.column)) is None:
            continue  # deleted meanwhile
        context = column.context(row)
        try:
            opened = unseal(column.purpose, stored, context=context)
        except SealedValueError:
            result.unreadable.append(key)
            continue
        unchanged = column.model._default_manager.filter(pk=key, **{column.column: stored})  # noqa: SLF001 as above
        result.changed += unchanged.update(**{column.column: seal(column.purpose, opened, context=context)})
    return result


def unreadable_rows(column: SealedColumn) -> Iterator[int]:
    """Yield the keys of the rows whose value cannot be opened at its place, whatever its root key."""
    for key in _keys(_rows(column)):
        row = column.model._default_manager.filter(pk=key).first()  # noqa: SLF001 Django's name
        if row is None or (stored := getattr(row, column.column)) is None:
            continue
        try:
            unseal(column.purpose, stored, context=column.context(row))
        except SealedValueError:
            yield key


def _rows(column: SealedColumn) -> QuerySet[Any]:
    return column.model._default_manager.filter(**{f"{column.column}__isnull": False})  # noqa: SLF001 Django's name


def _stale_keys(column: SealedColumn) -> Iterator[int]:
    header = current_header()
    begin = Func(F(column.column), Value(1), Value(len(header)), function="substring", output_field=BinaryField())
    return _keys(_rows(column).annotate(header=begin).exclude(header=header))


def _keys(rows: QuerySet[Any]) -> Iterator[int]:
    """Yield the keys of rows in their order. A value may have megabytes, so each row is read alone."""
    last = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:KEYS_PER_QUERY]):
        yield from page
        last = page[-1]
