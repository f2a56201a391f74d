"""Billed minutes: `/v1/usage`."""
