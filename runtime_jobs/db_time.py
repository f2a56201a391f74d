"""The database's clock, by which all deadlines are decided."""

from datetime import datetime

from django.db import connection


def database_now() -> datetime:
    """Return the database's time. Call it after the last lock: a wait would make an earlier value stale."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]
