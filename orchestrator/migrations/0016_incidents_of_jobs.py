"""Give incidents the job that failed. A column that is null and a small table: the former release writes on."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0015_accepted_deliveries')]

    operations = [
        migrations.AddField(
            model_name='incident',
            name='job_ulid',
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AlterField(
            model_name='incident',
            name='kind',
            field=models.CharField(choices=[('breaker', 'breaker'), ('job', 'job')], max_length=20),
        ),
        migrations.AddIndex(
            model_name='incident',
            index=models.Index(condition=models.Q(('job_ulid__isnull', False)), fields=['job_ulid'], name='incidents_of_jobs'),
        ),
    ]
