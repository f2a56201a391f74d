"""Name limits of projects among the kinds; the database does not change."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Changes the choices of `Limit.kind`."""

    dependencies = [
        ("leases", "0009_isolation_microvm"),
    ]

    operations = [
        migrations.AlterField(
            model_name="limit",
            name="kind",
            field=models.CharField(
                choices=[
                    ("organization", "Organization"),
                    ("plan", "Plan"),
                    ("project", "Project"),
                    ("emergency", "Emergency"),
                    ("source_address", "Source Address"),
                    ("concurrency", "Concurrency"),
                    ("rate", "Rate"),
                    ("pause", "Pause"),
                    ("throttle", "Throttle"),
                    ("breaker", "Breaker"),
                ],
                max_length=20,
            ),
        ),
    ]
