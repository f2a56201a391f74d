from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("workers", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="trusts_lease_ids",
            field=models.BooleanField(
                default=False,
                help_text="Delta CI's own runner sends no credentials: whoever knows the id of a lease of this pool's workers may speak for its job.",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="certificate_subject",
            field=models.CharField(
                blank=True,
                help_text="By which a trusted proxy names it after it has checked its client certificate.",
                max_length=512,
                null=True,
                unique=True,
            ),
        ),
    ]
