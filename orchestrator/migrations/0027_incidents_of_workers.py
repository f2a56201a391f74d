"""Give incidents the worker that pauses. A column that is null and a small table: the former release writes on."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0026_bulk_actions'),
    ]

    operations = [
        migrations.AddField(
            model_name='incident',
            name='worker_ulid',
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AlterField(
            model_name='incident',
            name='kind',
            field=models.CharField(choices=[('breaker', 'Breaker'), ('job', 'Job'), ('replay', 'Replay'), ('webhook', 'Webhook'), ('worker', 'Worker')], max_length=20),
        ),
        migrations.AlterField(
            model_name='incident',
            name='org_slug',
            field=models.CharField(blank=True, max_length=63),
        ),
        migrations.AddConstraint(
            model_name='incident',
            constraint=models.UniqueConstraint(condition=models.Q(('resolved_at', None), ('worker_ulid__isnull', False)), fields=('worker_ulid',), name='one_unresolved_incident_per_worker'),
        ),
    ]
