"""System checks: settings that contradict one another, and SQL functions that differ from the files of this release."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection

from leases import sql_functions
from runtime_jobs.applied_migrations import are_migrations_pending, unknown_migrations

SETTINGS = "settings"  # the tag of the checks of settings
AT_LEAST_A_SECOND = ("ACKNOWLEDGE_WITHIN_SECONDS", "CANCEL_DEADLINE_SECONDS", "HEARTBEAT_INTERVAL_SECONDS")


@register(SETTINGS)
def timings(**_: Any) -> list[CheckMessage]:
    """Report durations that would expire healthy leases."""
    found: list[CheckMessage] = []
    if 3 * settings.HEARTBEAT_INTERVAL_SECONDS >= settings.LEASE_TTL_SECONDS:
        found.append(
            Error(
                "A lease must outlive two lost heartbeats.",
                hint="Set LEASE_TTL_SECONDS to more than 3 times HEARTBEAT_INTERVAL_SECONDS.",
                id="leases.E001",
            )
        )
    short = [name for name in AT_LEAST_A_SECOND if getattr(settings, name) < 1]
    return found + [Error(f"{name} must be at least 1.", id="leases.E002") for name in short]


@register(Tags.database)
def installed_sql_functions(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report SQL functions of the database that differ from those of this release.

    Silent before `manage.py migrate`, and if a newer release has migrated the database.
    """
    if "default" not in (databases or ()) or are_migrations_pending(connection) or unknown_migrations(connection):
        return []
    wrong = sql_functions.function_mismatches()
    if not wrong:
        return []
    return [
        Error(
            f"These SQL functions are missing, differ from this release or exist more than once: {', '.join(wrong)}.",
            hint="Drop overloads and other schemas' copies, then run `manage.py migrate`.",
            id="leases.E004",
        )
    ]
