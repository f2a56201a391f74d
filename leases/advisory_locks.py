"""Advisory locks of a transaction. `leases/sql/lanes_settle.sql` says which there are and in which order."""

from django.db import connection

QUEUES_OF_ORGANIZATION = 4
LIMITS_OF_QUEUE = 5
LIMIT_FULL = 8
JOBS_OF_ADDRESS = 10
JOBS_OF_KEY = 11
SUBMIT_QUOTA = 12


def advisory_xact_lock(number: int, key: int | str, *, shared: bool = False) -> None:
    """Wait for a guard and hold it until the transaction ends."""
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    hashed = "hashtext(%s)" if isinstance(key, str) else "%s"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s, {hashed})", [number, key])
