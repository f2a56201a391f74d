"""Limits what a runner, a person, a project and an address send, over all processes (contract 1.4)."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.conf import settings

from orchestrator.http.client_ip import network_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.request_limits import RequestRateExceeded, RequestRates, count_request
from orchestrator.protocols.bencher.authentication import BencherCaller
from runtime_jobs.models import Project
from workers.models import Worker

WINDOWS: Final = ("MINUTE", "HOUR", "DAY")


def register_connect(worker: Worker, *, now: datetime | None = None) -> None:
    """Count one connection or claim of a runner. Call this outside of a transaction, as all functions here.

    Args:
        worker: The runner.

    Raises:
        ApiError: 429; the runner has reached one of its limits. The call is counted nevertheless.
    """
    _count("runner_connect", str(worker.uuid), "RUNNER_CONNECTS", "runner", now)


def register_request(caller: BencherCaller, *, now: datetime | None = None) -> None:
    """Count one request of a person or of a project's key. Anonymous requests are not counted.

    Args:
        caller: The caller.

    Raises:
        ApiError: 429; the caller has reached one of its limits. The request is counted nevertheless.
    """
    if (name := _name_of(caller)) is not None:
        _count("caller_request", name, "CALLER_REQUESTS", "user", now)


def register_run(
    caller: BencherCaller, find_project: Callable[[], Project | None], *, now: datetime | None = None
) -> None:
    """Count one run of an authenticated caller, and of its project if the caller may submit to that.

    Args:
        caller: The person or the key of a project.
        find_project: Returns the project of the run, or None if it is created with the run. Called if there is a limit.

    Raises:
        ApiError: 429; one of the limits is reached. The run is counted nevertheless.
    """
    if not any(_limits("AUTHENTICATED_RUNS")):
        return
    if caller.user is not None:
        _count("run", f"user {caller.user.pk}", "AUTHENTICATED_RUNS", "claimed run", now)
    project = find_project()
    if project is not None and caller.may_change(project):
        _count("run", f"project {project.uuid}", "AUTHENTICATED_RUNS", "claimed run", now)


def register_anonymous_run(address: str, *, now: datetime | None = None) -> None:
    """Count one anonymous run of an address, or of its IPv6 /64.

    Args:
        address: The client's address.

    Raises:
        ApiError: 429; the address has reached one of its limits. The run is counted nevertheless.
    """
    _count("anonymous_run", network_of(address), "ANONYMOUS_RUNS", "unclaimed run", now)


def _name_of(caller: BencherCaller) -> str | None:
    if caller.user is not None:
        return f"user {caller.user.pk}"
    return None if caller.project is None else f"project {caller.project.uuid}"


def _limits(setting: str) -> list[int]:
    return [getattr(settings, f"{setting}_PER_{window}") for window in WINDOWS]


def _count(kind: str, client: str, setting: str, subject: str, now: datetime | None) -> None:
    try:
        count_request(kind, client, RequestRates(*_limits(setting)), now=now)
    except RequestRateExceeded as error:
        detail = f"Too many requests for {subject} per {error.window}. Please, try again later."
        headers = {"Retry-After": str(error.retry_after)}
        raise ApiError(429, "rate_limited", f"{detail} The limit is {error.limit}.", headers=headers) from None
