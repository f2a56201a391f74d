"""The partitions of the used tokens: one for each day of their expiry, created ahead and dropped as a whole.

A token is kept for 30 days after its expiry (document 003). Deleting hundreds of millions of rows would write as much
as inserting them did; dropping a day removes its file.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Final

from django.db import OperationalError, connection, transaction

from leases.advisory_locks import TOKEN_PARTITIONS, advisory_xact_lock
from orchestrator.core.counters import count, runs_pruned

TABLE: Final = "actions_used_tokens"
DAYS_AHEAD: Final = 7
RETENTION_DAYS: Final = 30
_PREFIX: Final = f"{TABLE}_"
_LOCK_TIMEOUT: Final = "2s"  # calls wait behind a lock of the whole table, and proceed after this


def partition_name(day: date) -> str:
    """Return the name of the table that has the tokens which expire on a day."""
    return f"{_PREFIX}{day:%Y%m%d}"


def partition_days() -> list[date]:
    """Return the days that have a partition, in order."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass"
    with connection.cursor() as cursor:
        cursor.execute(query, [TABLE])
        names = [str(row[0]) for row in cursor.fetchall()]
    return sorted(_day_of(name) for name in names)


def _day_of(name: str) -> date:
    return datetime.strptime(name.removeprefix(_PREFIX), "%Y%m%d").replace(tzinfo=UTC).date()


def create_partitions(first: date, days: int = DAYS_AHEAD) -> list[date]:
    """Create the missing partitions of consecutive days.

    A partition is created as a table of its own and then attached: inserts into other partitions continue.

    Args:
        first: The first day.
        days: The number of days.

    Returns:
        The days for which a partition was created.
    """
    wanted = {first + timedelta(days=number) for number in range(days)}
    if not wanted.difference(partition_days()):
        return []
    with transaction.atomic():
        advisory_xact_lock(TOKEN_PARTITIONS, TABLE)
        missing = sorted(wanted.difference(partition_days()))
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            for day in missing:
                name, end = partition_name(day), day + timedelta(days=1)
                bounds = f"FROM ('{day} 00:00:00+00') TO ('{end} 00:00:00+00')"
                cursor.execute(f"CREATE TABLE {name} (LIKE {TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
                cursor.execute(f"ALTER TABLE {TABLE} ATTACH PARTITION {name} FOR VALUES {bounds}")
    return missing


def expired_tokens(now: datetime) -> dict[date, int]:
    """Return the days whose last token has expired `RETENTION_DAYS` ago, with the numbers of their tokens.

    The numbers are the estimates of PostgreSQL's statistics. No row is read.

    Args:
        now: The time of the database.
    """
    last = (now - timedelta(days=RETENTION_DAYS)).astimezone(UTC).date()
    days = [day for day in partition_days() if day < last]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_get_live_tuples(name::regclass) FROM unnest(%s::text[]) WITH ORDINALITY AS t(name, place)"
            " ORDER BY place",
            [[partition_name(day) for day in days]],
        )
        return dict(zip(days, (int(row[0]) for row in cursor.fetchall()), strict=True))


def drop_expired_partitions(now: datetime, *, limit: int = 1000) -> dict[date, int]:
    """Drop the partitions whose last token has expired `RETENTION_DAYS` ago. No row is read.

    Args:
        now: The time of the database.
        limit: The maximum number of partitions.

    Returns:
        The days that were dropped, with the estimated numbers of their tokens. A day that is in use at this time is
        left to the next call.
    """
    dropped: dict[date, int] = {}
    for day, tokens in list(expired_tokens(now).items())[:limit]:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                cursor.execute(f"DROP TABLE {partition_name(day)}")
        except OperationalError:
            break
        dropped[day] = tokens
    if tokens := sum(dropped.values()):
        count([runs_pruned("jwt_used")], tokens)
    return dropped
