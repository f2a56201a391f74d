"""Add the version that a runner reports, and the table of the open channels of each process of the server.

The former release inserts workers without the version, whose default is the database's, and does not use the table.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('workers', '0006_runner_pool')]

    operations = [
        migrations.AddField(
            model_name='worker',
            name='agent_version',
            field=models.CharField(blank=True, db_default='', default='', editable=False, help_text='As the runner reported it.', max_length=64),
        ),
        migrations.CreateModel(
            name='RunnerChannels',
            fields=[
                ('process', models.CharField(max_length=100, primary_key=True, serialize=False)),
                ('channels', models.JSONField(default=dict)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'db_table': 'runner_channels',
            },
        ),
    ]
