"""Throttles log-in attempts. Each attempt is counted in PostgreSQL before its password is hashed.

Counting afterwards, as django-axes 8 does on the `user_login_failed` signal, lets every attempt of a burst pass the
check before the first one is counted.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from django.http import HttpRequest

from orchestrator.http.auth.password_hashing import HashingBusy
from orchestrator.http.client_ip import rate_limit_key
from orchestrator.limits import throttles
from orchestrator.limits.throttles import Window, WindowState

WINDOW_SECONDS: Final = 300
PER_NAME_AND_NETWORK: Final = 5
PER_NETWORK: Final = 30
# Attempts on one name from everywhere. Beyond them each network has fewer attempts on that name, but never none: a
# stranger elsewhere slows a user down and does not lock the user out.
PER_NAME: Final = 100
PER_NAME_AND_NETWORK_SLOWED: Final = 1
LOGIN_ATTEMPTS: Final = "login_attempts"


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
    windows = _windows(rate_limit_key(request) if request else "", username)
    _reserve(windows)
    attempt = AttemptedLogin()
    try:
        yield attempt
    except HashingBusy as busy:
        throttles.take_back(windows)
        raise TooManyAttempts(busy.retry_after) from None
    if attempt.has_succeeded:
        throttles.take_back(windows)


def _windows(network: str, username: str) -> tuple[Window, Window, Window]:
    """Return where one attempt is counted: of the network, of the name, and of the name in the network."""
    name = username.casefold()
    clients = (f"network {network}", f"name {name}", f"both {network} {name}")
    of_network, of_name, of_both = (Window(LOGIN_ATTEMPTS, client, WINDOW_SECONDS) for client in clients)
    return of_network, of_name, of_both


def _reserve(windows: Sequence[Window]) -> None:
    """Count the attempt, or raise TooManyAttempts and leave the counts as they were.

    A blocked attempt only reads. A burst passes the reading together; what counts is then the number that the atomic
    increment returned to each.
    """
    _refuse_if_over(throttles.read(windows), spare=1)
    try:
        _refuse_if_over(throttles.count(windows), spare=0)
    except TooManyAttempts:
        throttles.take_back(windows)
        raise


def _refuse_if_over(states: Sequence[WindowState], *, spare: int) -> None:
    is_slowed = states[1].number + spare > PER_NAME
    limits = (PER_NETWORK, math.inf, PER_NAME_AND_NETWORK_SLOWED if is_slowed else PER_NAME_AND_NETWORK)
    over = [state for state, limit in zip(states, limits, strict=True) if state.number + spare > limit]
    if over:
        raise TooManyAttempts(max(state.retry_after for state in over))
