"""System checks: settings that contradict one another, and SQL functions that differ from the files of this release."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from leases import sql_functions

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


@register()
def frozen_sql_files(**_: Any) -> list[CheckMessage]:
    """Report files of released SQL functions that were edited."""
    return [
        Error(
            f"leases/sql/{file} was changed. Databases keep the functions that they were migrated to.",
            hint="Restore the file. Give a changed function a new version, in new files and a new migration.",
            id="leases.E003",
        )
        for file in sql_functions.changed_files()
    ]


@register(Tags.database)
def installed_sql_functions(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report SQL functions of the database that differ from those of this release.

    Silent before the migration that creates them: Django runs this check at the begin of `migrate`, too.
    """
    if "default" not in (databases or ()) or sql_functions.MIGRATION not in _applied_migrations():
        return []
    wrong = sql_functions.function_mismatches()
    if not wrong:
        return []
    files = " ".join(f"-f leases/sql/{file}" for file in sql_functions.CHECKSUMS)
    return [
        Error(
            f"These SQL functions are missing, differ from this release or exist more than once: {', '.join(wrong)}.",
            hint=f'Drop overloads and other schemas\' copies, then run: psql "$DATABASE_URL" -1 {files}',
            id="leases.E004",
        )
    ]


def _applied_migrations() -> set[tuple[str, str]]:
    return set(MigrationRecorder(connection).applied_migrations())
