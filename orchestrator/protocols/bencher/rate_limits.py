"""Limits the connections and claims of one runner, over all processes (contract 1.4)."""

from datetime import datetime

from django.conf import settings

from orchestrator.http.errors.problems import ApiError
from orchestrator.http.request_limits import RequestRateExceeded, RequestRates, count_request
from workers.models import Worker


def register_connect(worker: Worker, *, now: datetime | None = None) -> None:
    """Count one connection or claim of a runner. Call this outside of a transaction.

    Args:
        worker: The runner.
        now: The time of the call; by default the time of the database.

    Raises:
        ApiError: 429; the runner has reached one of its limits. The call is counted nevertheless.
    """
    rates = RequestRates(
        minute=settings.RUNNER_CONNECTS_PER_MINUTE,
        hour=settings.RUNNER_CONNECTS_PER_HOUR,
        day=settings.RUNNER_CONNECTS_PER_DAY,
    )
    try:
        count_request("runner_connect", str(worker.uuid), rates, now=now)
    except RequestRateExceeded as error:
        detail = f"Too many requests for runner per {error.window}. Please, try again later."
        raise ApiError(429, "rate_limited", detail, headers={"Retry-After": str(error.retry_after)}) from None
