"""Create the table of housekeeping tasks. A new table: the former release does not use it."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0011_image_blobs_by_file'),
    ]

    operations = [
        migrations.CreateModel(
            name='HousekeepingTask',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(max_length=63)),
                ('subject', models.CharField(blank=True, max_length=200)),
                ('due_at', models.DateTimeField(null=True, verbose_name='due')),
                ('requested_count', models.BigIntegerField(db_default=1, default=1)),
                ('claim_count', models.BigIntegerField(db_default=0, default=0)),
                ('claimed_by', models.CharField(blank=True, db_default='', max_length=100)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('failures', models.PositiveIntegerField(db_default=0, default=0)),
                ('last_error', models.CharField(blank=True, db_default='', max_length=2000)),
                ('failed_at', models.DateTimeField(null=True, verbose_name='last failure')),
                ('succeeded_at', models.DateTimeField(null=True, verbose_name='last success')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'housekeeping_tasks',
                'indexes': [models.Index(condition=models.Q(('due_at__isnull', False)), fields=['due_at'], name='housekeeping_tasks_by_due_time'), models.Index(condition=models.Q(('failures__gt', 0)), fields=['failures'], name='housekeeping_tasks_failing')],
                'constraints': [models.UniqueConstraint(fields=('kind', 'subject'), name='one_housekeeping_task_per_subject')],
            },
        ),
    ]
