"""Rename the model of the row up to which metrics are counted. The table keeps its name (ADR 45)."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0005_credential_changes")]

    operations = [migrations.RenameModel("Place", "MetricsPosition")]
