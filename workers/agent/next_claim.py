"""The claim that goes with the final message of a job, so that its slot gets the next job without another call."""

from __future__ import annotations

from collections.abc import Callable

from workers.agent.http.client import ClaimOffer
from workers.agent.http.wire import LeasePayload
from workers.agent.retry import retry


def _no_offer() -> ClaimOffer | None:
    return None


class NextClaim:
    """Sends the final message of one job, and keeps the lease of the next job that the response brings.

    Attributes:
        is_sent: Whether a final message with a claim has been sent.
        lease: The next lease, or None. It has not been acknowledged.
    """

    def __init__(self, offer: Callable[[], ClaimOffer | None] = _no_offer) -> None:
        """Make the claim of one job.

        Args:
            offer: Returns what to claim with, or None to claim nothing. By default nothing is claimed.
        """
        self._offer = offer
        self.is_sent = False
        self.lease: LeasePayload | None = None

    def send(
        self, call: Callable[[ClaimOffer | None], LeasePayload | None], *, budget: Callable[[float], bool]
    ) -> None:
        """Send a final message until there is a response.

        The offer is read once. A lost response may have brought a lease, and only the same claim returns it again.

        Args:
            call: Sends the message once, with this offer, and returns the next lease.
            budget: Waits between attempts, see `retry`.
        """
        offer = self._offer()
        self.is_sent = offer is not None
        self.lease = retry(lambda: call(offer), budget=budget)
