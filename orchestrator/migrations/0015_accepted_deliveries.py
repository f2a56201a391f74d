"""Allow the outcome `accepted` of deliveries. Django checks it alone, so the table stays as it is."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('orchestrator', '0014_heartbeat_windows')]

    operations = [
        migrations.AlterField(
            model_name='webhookdelivery',
            name='outcome',
            field=models.CharField(choices=[('created', 'Created'), ('accepted', 'Accepted'), ('duplicate', 'Duplicate'), ('ignored', 'Ignored'), ('refused', 'Refused')], max_length=10),
        ),
    ]
