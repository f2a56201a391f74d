"""Creates rows of lanes, queues and limits, whose ids of 32 bits are used again once all have been used."""

from typing import Any, TypeVar

from django.db import IntegrityError, connection
from django.db.models import Model

MAX_ATTEMPTS = 20
_JUMP = "SELECT setval(pg_get_serial_sequence(%s, 'id'), 1 + floor(random() * 2147483646)::bigint)"

Row = TypeVar("Row", bound=Model)


def get_or_create(model: type[Row], *, defaults: dict[str, Any] | None = None, **key: Any) -> tuple[Row, bool]:
    """Return the row with this key and whether it is new, as Django's method of the same name does.

    Rows that idle are deleted, so there are few, but a long-lived one may have the id that the sequence returns. Then
    the sequence continues at a random id: the rows of one time have neighboring ids.

    Raises:
        IntegrityError: Another constraint is violated, or `MAX_ATTEMPTS` ids were in use.
    """
    table = model._meta.db_table  # noqa: SLF001 Django's documented interface
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return model.objects.get_or_create(defaults=defaults, **key)  # type: ignore[attr-defined] # every model has its manager
        except IntegrityError as error:
            violated = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
            if violated != f"{table}_pkey" or attempt == MAX_ATTEMPTS:
                raise
            with connection.cursor() as cursor:
                cursor.execute(_JUMP, [table])
    raise AssertionError("the last attempt returns or raises")
