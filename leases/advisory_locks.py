"""Advisory locks of a transaction, and the order in which all locks are taken.

| number | key | guards |
| --- | --- | --- |
| 4 | hash of the organization | the set of its queues and lanes, and its limits |
| 5 | queue | the limits of the queue; claims hold it shared |
| 6 | queue | the fact that the queue has nothing to serve |
| 7 | lane | the fact that the lane is empty, and the lane's existence |
| 8 | limit | the fact that the limit is full |
| 9 | lane | work on the lane's head: keeps two claims from the same work, guards nothing |
| 10 | hash of the source address | the jobs from that address that run |
| 11 | hash of the concurrency key | the jobs with that key |
| 12 | hash of the organization | the waiting jobs that its submit quota counts |
| 13 | organization | the bytes and uploads in the registry; under it only locks of image rows are awaited |
| 14 | organization | its secrets and variables; under it only locks of their rows are awaited |
| 15 | organization | its webhooks and notification rules; under it only locks of their rows are awaited |
| 16 | 0 | the position up to which events were turned into deliveries; it is tried, never awaited |
| 17 | organization | its schedules and bulk actions; under it only locks of their rows are awaited |
| 18 | name of the table | the set of its partitions |
| 19 | workflow run | the report that completes the run; after it only rows of lanes are awaited |
| 20 | 0 | the keys that sign evidence; under it only locks of their rows are awaited |
| 21 | 0 | the keys of identity tokens; under it only locks of their rows are awaited |
| 22 | 0 | the schema: one `migrate` at a time has it, in a session of its own |

An absence (6, 7, 8) is recorded under its lock, tried and alone. A transaction that ends the absence holds the lock
shared until commit. Order of locks at the end of a transaction, in `finalize_claim` and `release_and_enqueue`:
12, submit quota row, 8, rows of limits, 7, heads of lanes, 6, rows of shares, heads of queues. Rows of one table are
locked in the order of their keys, by one statement or one loop: two lists, each in order, deadlock with their opposite.

A claim tries the locks 5 to 9, and takes slots and jobs with SKIP LOCKED. It waits for the row of its worker, then for
rows of one-shot limits, for lock 10 (shared, in the order of its hashes, for jobs without a lane of their address),
and in `finalize_claim` for rows in the order above. Other transactions wait for all locks in this order.
"""

from django.db import connection
from django.db.transaction import TransactionManagementError

QUEUES_OF_ORGANIZATION = 4
LIMITS_OF_QUEUE = 5
LIMIT_FULL = 8
JOBS_OF_ADDRESS = 10
JOBS_OF_KEY = 11
IMAGES_OF_ORGANIZATION = 13
VALUES_OF_ORGANIZATION = 14
WEBHOOKS_OF_ORGANIZATION = 15
EVENT_DISPATCH = 16
RECURRING_OF_ORGANIZATION = 17
TOKEN_PARTITIONS = 18
ENDS_OF_RUN = 19
SIGNING_KEYS = 20
IDENTITY_KEYS = 21
SCHEMA = 22

_KEY_BITS = 2**31 - 1  # a key has 32 bits, an id 64: two ids that share a key only wait for each other


def advisory_xact_lock(number: int, key: int | str, *, shared: bool = False) -> None:
    """Wait for an advisory lock and hold it until the transaction ends.

    Args:
        number: What the lock guards, one of the constants of this module.
        key: An id, or a text of which the hash is used.
        shared: Exclude only those that take the lock alone.

    Raises:
        TransactionManagementError: There is no transaction, so the lock would end with this statement.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("An advisory lock that guards a transaction needs one.")
    function = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    hashed = "hashtext(%s)" if isinstance(key, str) else "%s"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s, {hashed})", [number, key if isinstance(key, str) else key & _KEY_BITS])


def try_advisory_xact_lock(number: int, key: int) -> bool:
    """Take an advisory lock until the transaction ends, unless another transaction has it. Returns whether it was free.

    Args:
        number: What the lock guards, one of the constants of this module.
        key: An id.

    Raises:
        TransactionManagementError: There is no transaction, so the lock would end with this statement.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("An advisory lock that guards a transaction needs one.")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [number, key & _KEY_BITS])
        return bool(cursor.fetchone()[0])
