from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0001_schema")]
    operations = [
        migrations.AddField("clockbeat", "term", models.BigIntegerField(db_default=0)),
        migrations.AddField("clockbeat", "backend_pid", models.IntegerField(null=True)),
        migrations.AddField("clockbeat", "backend_started_at", models.DateTimeField(null=True)),
        migrations.AddField("clockbeat", "released_at", models.DateTimeField(null=True)),
    ]
