"""Renewals are the most frequent write: they find room on their own page (HOT)."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("leases", "0001_initial")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE runtime_worker_leases SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01)",
            "ALTER TABLE runtime_worker_leases RESET (fillfactor, autovacuum_vacuum_scale_factor)",
        )
    ]
