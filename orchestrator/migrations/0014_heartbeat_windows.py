"""Create the table that counts the heartbeats of runners. A new table: the former release does not use it."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0013_job_tokens')]

    operations = [
        migrations.CreateModel(
            name='HeartbeatWindow',
            fields=[
                ('runner_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('started_at', models.DateTimeField()),
                ('number', models.PositiveIntegerField()),
            ],
            options={
                'db_table': 'actions_heartbeat_windows',
            },
        ),
    ]
