"""Incident mode of an organization: until its end nothing of the organization is deleted by retention.

Notifications of the organization are sent one by one, and audit bundles and the console name the mode.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.incidents.models import IncidentMode
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.events import SCHEDULER

MAX_DURATION: Final = timedelta(days=31)
# SQL: the slugs of organizations in incident mode. Retention excludes them.
KEPT_ORGANIZATIONS: Final = "SELECT org_slug FROM incident_modes WHERE until > clock_timestamp()"


@operation
def begin_incident_mode(
    _: UnitOfWork,
    *,
    org_slug: str,
    until: datetime,
    cause: Cause,
) -> IncidentMode:
    """Put an organization into incident mode, or change the end and the reason of its mode.

    Args:
        org_slug: The organization.
        until: The end.

    Raises:
        Invalid: `until` is not in the future, or more than `MAX_DURATION` away.
    """
    now = cause.now or database_now()
    if not now < until <= now + MAX_DURATION:
        raise Invalid({"until": [f"`until` must be in the future, and at most {MAX_DURATION.days} days away."]})
    return _begin(org_slug, until=until, cause=cause, now=now)


@operation
def end_incident_mode(
    _: UnitOfWork,
    *,
    org_slug: str,
    cause: Cause,
) -> None:
    """End the incident mode of an organization before its time.

    Args:
        org_slug: The organization.

    Raises:
        NotFound: The organization is not in incident mode.
    """
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    now = cause.now or database_now()
    mode = IncidentMode.objects.filter(org_slug=org_slug, until__gt=now).first()
    if mode is None:
        raise NotFound(f"The organization {org_slug} is not in incident mode.")
    _end(mode, cause=cause, now=now)


@operation
def remove_expired_incident_mode(_: UnitOfWork, *, org_slug: str, now: datetime | None = None) -> bool:
    """Remove the incident mode of an organization if its end has passed, and report whether.

    Args:
        org_slug: The organization.
    """
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)
    now = now or database_now()
    # After the lock: a new end may have been set meanwhile.
    mode = IncidentMode.objects.filter(org_slug=org_slug, until__lte=now).first()
    if mode is None:
        return False
    _end(mode, cause=Cause(SCHEDULER, "The incident mode has expired."), now=now)
    return True


def extend_incident_mode(org_slug: str, *, until: datetime, reason: str, now: datetime) -> None:
    """Put an organization into incident mode, within another operation. A mode that ends later stays as it is.

    Args:
        org_slug: The organization.
        until: The end.
        reason: The cause.
        now: Timestamp of the change.
    """
    if not IncidentMode.objects.filter(org_slug=org_slug, until__gte=until).exists():
        _begin(org_slug, until=until, cause=Cause(SCHEDULER, reason), now=now)


def _begin(org_slug: str, *, until: datetime, cause: Cause, now: datetime) -> IncidentMode:
    advisory_xact_lock(QUEUES_OF_ORGANIZATION, org_slug)  # of two changes, the later one sees the earlier one
    before = IncidentMode.objects.filter(org_slug=org_slug).first()
    changes = {"reason": cause.reason[:500], "until": until}
    if before is None or before.until <= now:
        changes |= {"begun_at": now, "begun_by": str(cause.actor)}
    mode, _is_new = IncidentMode.objects.update_or_create(org_slug=org_slug, defaults=changes)
    record_operator_event(
        "incident_mode.begun",
        target=f"organization:{org_slug}",
        cause=cause.at(now),
        before=_describe(before),
        after=_describe(mode),
        org_slug=org_slug,
    )
    return mode


def _end(mode: IncidentMode, *, cause: Cause, now: datetime) -> None:
    mode.delete()
    record_operator_event(
        "incident_mode.ended",
        target=f"organization:{mode.org_slug}",
        cause=cause.at(now),
        before=_describe(mode),
        after={},
        org_slug=mode.org_slug,
    )


def _describe(mode: IncidentMode | None) -> dict[str, Any]:
    return {} if mode is None else {"until": mode.until.isoformat(), "begun_by": mode.begun_by}
