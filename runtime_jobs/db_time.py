"""The database's clock: the only one that decides anything."""

from datetime import datetime

from django.db import connection


def database_now() -> datetime:
    """The time as it is now. Ask after the last lock, never before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
