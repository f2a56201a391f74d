"""Create the table that counts requests: see `orchestrator.http.request_limits`."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0006_metrics_position")]

    operations = [
        migrations.CreateModel(
            name="RequestWindow",
            fields=[
                ("key", models.BinaryField(max_length=32, primary_key=True, serialize=False)),
                ("period", models.BigIntegerField(help_text="Number of the current period since the epoch.")),
                ("current", models.BigIntegerField()),
                ("previous", models.BigIntegerField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "request_windows",
                "indexes": [models.Index(fields=["expires_at"], name="request_windows_by_age")],
            },
        ),
    ]
