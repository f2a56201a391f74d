"""The dashboard: alerts, tiles, pools and failures."""
