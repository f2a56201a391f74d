from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("workers", "0003_labels"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="aging",
            field=models.BooleanField(
                db_default=True,
                default=True,
                help_text="Waiting raises the priority of a job (setting AGING_SECONDS). "
                "Off: strict order by priority; a job of low priority may starve.",
            ),
        ),
    ]
