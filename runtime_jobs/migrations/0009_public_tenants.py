"""Give organizations and projects UUIDs, projects a public slug and a visibility, and create the plans of the tiers.

Safe while processes of the former release work: no statement rewrites or reads a table under a strong lock. Columns get
a default in the database, because a process of the former release inserts rows without them. Rows that exist are filled
in batches, each a transaction of its own. The migration may be repeated after an interruption.

Reversing keeps the columns, because the former release works with them.
"""

from typing import Any

import django.contrib.postgres.functions
import django.core.validators
import django.db.models.functions.comparison
from django.db import migrations, models

import runtime_jobs.identifiers
from runtime_jobs import online_ddl

ORGANIZATIONS, PROJECTS, PLANS = "runtime_jobs_organization", "runtime_jobs_project", "runtime_jobs_plan"
BATCH = 1000

ADD_COLUMNS = [
    f"ALTER TABLE {ORGANIZATIONS} ADD COLUMN IF NOT EXISTS uuid uuid",
    f"ALTER TABLE {ORGANIZATIONS} ALTER COLUMN uuid SET DEFAULT gen_random_uuid()",
    f"ALTER TABLE {ORGANIZATIONS} ADD COLUMN IF NOT EXISTS claimed_at timestamptz",
    f"ALTER TABLE {PROJECTS} ADD COLUMN IF NOT EXISTS uuid uuid",
    f"ALTER TABLE {PROJECTS} ALTER COLUMN uuid SET DEFAULT gen_random_uuid()",
    f"ALTER TABLE {PROJECTS} ADD COLUMN IF NOT EXISTS public_slug varchar(64)",
    f"ALTER TABLE {PROJECTS} ALTER COLUMN public_slug SET DEFAULT gen_random_uuid()::varchar",
    f"ALTER TABLE {PROJECTS} ADD COLUMN IF NOT EXISTS visibility varchar(10) NOT NULL DEFAULT 'private'",
    f"ALTER TABLE {PLANS} ADD COLUMN IF NOT EXISTS default_timeout_seconds integer NOT NULL DEFAULT 3600",
]
# A public slug has no hyphen at its end and no two hyphens in a row.
PLAIN = "rtrim(regexp_replace({table}.slug, '-+', '-', 'g'), '-')"
OWN, OTHER = PLAIN.format(table="p"), PLAIN.format(table="q")
# The oldest project of a slug gets the slug itself. A project that was inserted meanwhile has a random one.
FILL_PROJECTS = f"""
UPDATE {PROJECTS} p
   SET uuid = coalesce(p.uuid, gen_random_uuid()),
       public_slug = CASE WHEN EXISTS (SELECT FROM {PROJECTS} q
                                        WHERE {OTHER} = {OWN} AND q.id < p.id OR q.public_slug = {OWN})
                          THEN rtrim(left({OWN}, 55), '-') || '-' || left(md5(gen_random_uuid()::text), 8)
                          ELSE {OWN} END
 WHERE p.id IN (SELECT id FROM {PROJECTS} WHERE public_slug IS NULL ORDER BY id LIMIT {BATCH})
"""
FILL_ORGANIZATIONS = f"""
UPDATE {ORGANIZATIONS} SET uuid = gen_random_uuid()
 WHERE id IN (SELECT id FROM {ORGANIZATIONS} WHERE uuid IS NULL ORDER BY id LIMIT {BATCH})
"""
UNLIMITED_SECONDS = 2**31 - 1
# name: priority, longest and default timeout, jobs at the same time, one job of an address
TIERS = {
    "enterprise": (300, UNLIMITED_SECONDS, 3600, None, False),
    "team": (200, UNLIMITED_SECONDS, 3600, None, False),
    "free": (100, 300, 300, 1, False),
    "unclaimed": (0, 60, 60, None, True),
}


def change_tenants(_apps: Any, schema_editor: Any) -> None:
    """Add the columns, fill them, and then require them."""
    online_ddl.run_with_short_locks(schema_editor, ADD_COLUMNS)
    for statement in (FILL_ORGANIZATIONS, FILL_PROJECTS):
        online_ddl.repeat_until_done(schema_editor, statement)
    for table, column, name in (
        (ORGANIZATIONS, "uuid", "one_organization_per_uuid"),
        (PROJECTS, "uuid", "one_project_per_uuid"),
        (PROJECTS, "public_slug", "one_project_per_public_slug"),
    ):
        online_ddl.replace_index(schema_editor, name, f"{table} ({column})", unique=True)
        online_ddl.require_values(schema_editor, table, column)


def create_plans(apps: Any, _schema_editor: Any) -> None:
    """Create the plans of the tiers that are missing. A plan that an operator has made stays as it is."""
    plans = apps.get_model("runtime_jobs", "Plan").objects
    for name, (priority, longest, default, at_once, one_per_address) in TIERS.items():
        values = {
            "priority": priority,
            "max_timeout_seconds": longest,
            "default_timeout_seconds": default,
            "max_active": at_once,
            "one_per_address": one_per_address,
        }
        plans.get_or_create(name=name, defaults=values)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runtime_jobs", "0008_usage")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(change_tenants, migrations.RunPython.noop)],
            state_operations=[
                migrations.AddField(
                    "organization",
                    "uuid",
                    models.UUIDField(
                        db_default=django.contrib.postgres.functions.RandomUUID(),
                        default=runtime_jobs.identifiers.new_uuid,
                        editable=False,
                    ),
                ),
                migrations.AddField(
                    "organization",
                    "claimed_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When an organization without an owner got its first member.",
                        null=True,
                    ),
                ),
                migrations.AddField(
                    "project",
                    "uuid",
                    models.UUIDField(
                        db_default=django.contrib.postgres.functions.RandomUUID(),
                        default=runtime_jobs.identifiers.new_uuid,
                        editable=False,
                    ),
                ),
                migrations.AddField(
                    "project",
                    "public_slug",
                    models.CharField(
                        blank=True,
                        db_default=django.db.models.functions.comparison.Cast(
                            django.contrib.postgres.functions.RandomUUID(), models.CharField()
                        ),
                        default="",
                        editable=False,
                        max_length=64,
                    ),
                ),
                migrations.AddField(
                    "project",
                    "visibility",
                    models.CharField(
                        choices=[("public", "Public"), ("private", "Private")],
                        db_default="private",
                        default="private",
                        help_text="Who may read the project by the Bencher API. public: everyone, without "
                        "authentication.",
                        max_length=10,
                    ),
                ),
                migrations.AddField(
                    "plan",
                    "default_timeout_seconds",
                    models.PositiveIntegerField(
                        db_default=3600,
                        default=3600,
                        help_text="Timeout of a run (Bencher API) that requests none. The max timeout limits it, too.",
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="default timeout (seconds)",
                    ),
                ),
                *(
                    migrations.AddConstraint(model, models.UniqueConstraint(fields=[column], name=name))
                    for model, column, name in (
                        ("organization", "uuid", "one_organization_per_uuid"),
                        ("project", "uuid", "one_project_per_uuid"),
                        ("project", "public_slug", "one_project_per_public_slug"),
                    )
                ),
            ],
        ),
        migrations.RunPython(create_plans, migrations.RunPython.noop),
    ]
