"""Limits what a runner, a person, a project and an address send, over all processes (contract 1.4).

Windows slide. A refused call is counted, too, so a client that never pauses remains refused.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.conf import settings

from orchestrator.http.client_ip import network_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.limits import throttles
from orchestrator.limits.throttles import Window
from orchestrator.protocols.bencher.authentication import BencherCaller
from runtime_jobs.models import Project
from workers.models import Worker

PERIODS: Final = {"minute": 60, "hour": 3600, "day": 86_400}  # seconds


def register_connect(worker: Worker, *, now: datetime | None = None) -> None:
    """Count one connection or claim of a runner. Call this outside of a transaction, as all functions here.

    Args:
        worker: The runner.

    Raises:
        ApiError: 429; the runner has reached one of its limits. The call is counted nevertheless.
    """
    _count("runner_connects", str(worker.uuid), "RUNNER_CONNECTS", "runner", now)


def register_request(caller: BencherCaller, *, now: datetime | None = None) -> None:
    """Count one request of a person or of a project's key. Anonymous requests are not counted.

    Args:
        caller: The caller.

    Raises:
        ApiError: 429; the caller has reached one of its limits. The request is counted nevertheless.
    """
    if (name := _name_of(caller)) is not None:
        _count("caller_requests", name, "CALLER_REQUESTS", "user", now)


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
    if not _limits("AUTHENTICATED_RUNS"):
        return
    if caller.user is not None:
        _count("runs", f"user {caller.user.pk}", "AUTHENTICATED_RUNS", "claimed run", now)
    project = find_project()
    if project is not None and caller.may_change(project):
        _count("runs", f"project {project.uuid}", "AUTHENTICATED_RUNS", "claimed run", now)


def register_anonymous_run(address: str, *, now: datetime | None = None) -> None:
    """Count one anonymous run of an address, or of its IPv6 /64.

    Args:
        address: The client's address.

    Raises:
        ApiError: 429; the address has reached one of its limits. The run is counted nevertheless.
    """
    _count("anonymous_runs", network_of(address), "ANONYMOUS_RUNS", "unclaimed run", now)


def _name_of(caller: BencherCaller) -> str | None:
    if caller.user is not None:
        return f"user {caller.user.pk}"
    return None if caller.project is None else f"project {caller.project.uuid}"


def _limits(setting: str) -> dict[str, int]:
    """Return the limit of each period that has one, the shortest first."""
    limits = {period: getattr(settings, f"{setting}_PER_{period.upper()}") for period in PERIODS}
    return {period: limit for period, limit in limits.items() if limit}


def _count(kind: str, client: str, setting: str, subject: str, now: datetime | None) -> None:
    limits = _limits(setting)
    windows = [Window(kind, client, PERIODS[period], slides=True) for period in limits]
    for (period, limit), state in zip(limits.items(), throttles.count(windows, now=now), strict=True):
        if state.number > limit:
            detail = f"Too many requests for {subject} per {period}. Please, try again later. The limit is {limit}."
            raise ApiError(429, "rate_limited", detail, headers={"Retry-After": str(state.retry_after)})
