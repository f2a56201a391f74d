"""Explains why jobs wait: `service` answers, `limits` and `workers` find the reasons, `reason` defines the codes."""
