"""Create the tables of used tokens, partitioned by the day of their expiry, and of chains of tokens.

New tables: the former release does not use them.
"""

from datetime import timedelta
from typing import Any

from django.db import migrations, models

DAYS = 8

CREATE = """
CREATE TABLE actions_used_tokens (
    expires_at timestamptz NOT NULL,
    jti varchar(128) COLLATE "C" NOT NULL,
    runner_id bigint NOT NULL,
    job_id bigint NOT NULL,
    used_at timestamptz NOT NULL,
    PRIMARY KEY (expires_at, jti)
) PARTITION BY RANGE (expires_at)
"""


def create_partitions(_apps: Any, schema_editor: Any) -> None:
    """Create the partitions of the next days. `orchestrator.job_tokens.partitions` creates the later ones."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date")
        (today,) = cursor.fetchone()
        for number in range(DAYS):
            day = today + timedelta(days=number)
            cursor.execute(
                f"CREATE TABLE actions_used_tokens_{day:%Y%m%d} PARTITION OF actions_used_tokens"
                f" FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + timedelta(days=1)} 00:00:00+00')"
            )


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0012_housekeeping')]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(CREATE, 'DROP TABLE actions_used_tokens'),
                migrations.RunPython(create_partitions, migrations.RunPython.noop),
            ],
            state_operations=[
                migrations.CreateModel(
                    name='UsedToken',
                    fields=[
                        ('pk', models.CompositePrimaryKey('expires_at', 'jti', blank=True, editable=False, primary_key=True, serialize=False)),
                        ('expires_at', models.DateTimeField()),
                        ('jti', models.CharField(max_length=128)),
                        ('runner_id', models.BigIntegerField()),
                        ('job_id', models.BigIntegerField()),
                        ('used_at', models.DateTimeField()),
                    ],
                    options={
                        'db_table': 'actions_used_tokens',
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name='TokenChain',
            fields=[
                ('job_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('fence', models.BigIntegerField()),
                ('number', models.PositiveIntegerField()),
            ],
            options={
                'db_table': 'actions_token_chains',
            },
        ),
    ]
