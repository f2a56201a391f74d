"""Compares the migrations that a database has with those of this release."""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor


def are_migrations_pending(connection: BaseDatabaseWrapper) -> bool:
    """Return whether `manage.py migrate` has something to apply."""
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def unknown_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the applied migrations that this release does not have: those of a newer release or an older commit."""
    executor = MigrationExecutor(connection)
    loader = executor.loader
    known = set(loader.disk_migrations).union(*(migration.replaces for migration in loader.disk_migrations.values()))
    applied = sorted(executor.recorder.applied_migrations())
    return [f"{app}.{name}" for app, name in applied if app in loader.migrated_apps and (app, name) not in known]
