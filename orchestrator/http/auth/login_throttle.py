"""Throttles log-in attempts. Each attempt is counted in PostgreSQL before its password is hashed.

Counting afterwards, as django-axes 8 does on the `user_login_failed` signal, lets every attempt of a burst pass the
check before the first one is counted.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, models
from django.http import HttpRequest
from django.utils.crypto import salted_hmac

from orchestrator.http.auth.password_hashing import HashingBusy
from orchestrator.http.client_ip import rate_limit_key

WINDOW_SECONDS: Final = 300
PER_NAME_AND_NETWORK: Final = 5
PER_NETWORK: Final = 30
# Attempts on one name from everywhere. Beyond them each network has fewer attempts on that name, but never none: a
# stranger elsewhere slows a user down and does not lock the user out.
PER_NAME: Final = 100
PER_NAME_AND_NETWORK_SLOWED: Final = 1
EXPIRED_ROWS_PER_ATTEMPT: Final = 30  # an attempt adds three rows at most, so that the table cannot grow for long


class LoginAttempts(models.Model):
    """The attempts within one window: of a client network, of a user name, or of a user name in one network.

    `key` is a keyed hash. A typed name is never stored: it may be a password in the wrong field.
    """

    key = models.BinaryField(max_length=32, primary_key=True)
    attempts = models.IntegerField()
    window_ends_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "login_attempts"
        indexes = [models.Index(fields=["window_ends_at"], name="login_attempts_by_age")]

    def __str__(self) -> str:
        return f"{self.attempts} until {self.window_ends_at}"


class TooManyAttempts(Exception):
    """The attempt was refused before its password was hashed.

    Attributes:
        retry_after: Seconds until the next attempt can be admitted.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"{retry_after} s")
        self.retry_after = retry_after


class AttemptedLogin:
    """One counted attempt. Call `succeed()` when the password was right: only failures count in the end."""

    def __init__(self) -> None:
        self.has_succeeded = False

    def succeed(self) -> None:
        self.has_succeeded = True


@contextmanager
def counted_attempt(request: HttpRequest | None, username: str) -> Iterator[AttemptedLogin]:
    """Count an attempt of the request's network on this name, known or not, around the hashing.

    An attempt that succeeds, or that was not hashed because the process was busy, is taken out of the count again.

    Raises:
        TooManyAttempts: A limit is reached, or too many passwords are being hashed in this process.
    """
    counters = _Counters.of(rate_limit_key(request) if request else "", username)
    counters.reserve()
    attempt = AttemptedLogin()
    try:
        yield attempt
    except HashingBusy as busy:
        counters.give_back()
        raise TooManyAttempts(busy.retry_after) from None
    if attempt.has_succeeded:
        counters.give_back()


_READ: Final = """
SELECT key, attempts, extract(epoch FROM window_ends_at - clock_timestamp())
FROM login_attempts WHERE key = ANY(%s) AND window_ends_at > clock_timestamp()
"""
# Rows are locked in the order of their keys by both statements, so that two attempts cannot wait for each other.
_RESERVE: Final = """
INSERT INTO login_attempts AS counted (key, attempts, window_ends_at)
SELECT key, 1, clock_timestamp() + make_interval(secs => %s) FROM unnest(%s::bytea[]) AS key ORDER BY key
ON CONFLICT (key) DO UPDATE SET
    attempts = CASE WHEN counted.window_ends_at > clock_timestamp() THEN counted.attempts + 1 ELSE 1 END,
    window_ends_at = CASE WHEN counted.window_ends_at > clock_timestamp()
        THEN counted.window_ends_at ELSE excluded.window_ends_at END
RETURNING key, attempts, extract(epoch FROM window_ends_at - clock_timestamp())
"""
_GIVE_BACK: Final = """
UPDATE login_attempts SET attempts = attempts - 1
WHERE key IN (SELECT key FROM login_attempts WHERE key = ANY(%s) AND attempts > 0 ORDER BY key FOR UPDATE)
"""
_DELETE_EXPIRED: Final = """
DELETE FROM login_attempts WHERE key IN (
    SELECT key FROM login_attempts WHERE window_ends_at < clock_timestamp()
    ORDER BY window_ends_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True)
class _Counters:
    """The three counters that one attempt belongs to."""

    network: bytes
    name: bytes
    both: bytes

    @classmethod
    def of(cls, network: str, username: str) -> "_Counters":
        name = username.casefold()
        return cls(_key("network", network), _key("name", name), _key("both", network, name))

    @property
    def keys(self) -> list[bytes]:
        return [self.network, self.name, self.both]

    def reserve(self) -> None:
        """Count the attempt, or raise TooManyAttempts and leave the counts as they were.

        A blocked attempt only reads. A burst passes the reading together; what counts is then the number that the
        atomic increment returned to each.
        """
        self._refuse_if_over(self._query(_READ, [self.keys]), spare=1)
        counts = self._query(_RESERVE, [WINDOW_SECONDS, self.keys])
        try:
            self._refuse_if_over(counts, spare=0)
        except TooManyAttempts:
            self.give_back()
            raise
        with connection.cursor() as cursor:
            cursor.execute(_DELETE_EXPIRED, [EXPIRED_ROWS_PER_ATTEMPT])

    def give_back(self) -> None:
        """Take one attempt out of each count."""
        with connection.cursor() as cursor:
            cursor.execute(_GIVE_BACK, [self.keys])

    def _query(self, sql: str, values: list[Any]) -> dict[bytes, tuple[int, float]]:
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            return {bytes(key): (attempts, float(left)) for key, attempts, left in cursor.fetchall()}

    def _refuse_if_over(self, counts: dict[bytes, tuple[int, float]], *, spare: int) -> None:
        is_slowed = counts.get(self.name, (0, 0.0))[0] + spare > PER_NAME
        limits = {
            self.network: PER_NETWORK,
            self.both: PER_NAME_AND_NETWORK_SLOWED if is_slowed else PER_NAME_AND_NETWORK,
        }
        over = [left for key, (attempts, left) in counts.items() if attempts + spare > limits.get(key, math.inf)]
        if over:
            raise TooManyAttempts(max(1, math.ceil(max(over))))


def _key(*parts: str) -> bytes:
    return salted_hmac("orchestrator.login_attempts", repr(parts), algorithm="sha256").digest()
