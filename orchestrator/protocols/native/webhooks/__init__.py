"""Outgoing webhooks and their deliveries."""
