"""Let the ids of lanes, queues and limits begin again after the last one of 32 bits."""

from django.db import migrations

TABLES = ("lanes", "lane_queues", "lane_limits")


class Migration(migrations.Migration):
    """Sets `CYCLE` on the sequences. Processes of a former release are not affected."""

    dependencies = [
        ("leases", "0011_one_order_of_queues"),
    ]

    operations = [
        migrations.RunSQL(
            f"ALTER SEQUENCE {table}_id_seq CYCLE",
            f"ALTER SEQUENCE {table}_id_seq NO CYCLE",
        )
        for table in TABLES
    ]
