"""Create the tables of runners of workflow jobs and of their registration tokens.

New tables: the former release does not use them. The foreign key to workers locks that table against writes for the
time of one statement.
"""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('workers', '0007_runner_channels')]

    operations = [
        migrations.CreateModel(
            name='ActionsRunner',
            fields=[
                ('worker', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='actions_runner', serialize=False, to='workers.worker')),
                ('name', models.CharField(max_length=100, unique=True)),
                ('labels', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=100), blank=True, default=list, size=None)),
                ('isolation', models.CharField(choices=[('none', 'none'), ('restricted', 'restricted'), ('namespaces', 'namespaces'), ('microvm', 'microvm')], default='namespaces', max_length=20)),
                ('host_name', models.CharField(blank=True, default='', editable=False, max_length=255)),
                ('version', models.CharField(blank=True, default='', editable=False, max_length=255)),
            ],
            options={
                'verbose_name': 'workflow runner',
                'db_table': 'actions_runners',
            },
        ),
        migrations.CreateModel(
            name='RegistrationToken',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('digest', models.BinaryField(editable=False, max_length=32, unique=True)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('runner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to='workers.actionsrunner')),
            ],
            options={
                'db_table': 'actions_registration_tokens',
            },
        ),
    ]
