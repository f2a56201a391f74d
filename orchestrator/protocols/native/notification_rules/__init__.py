"""Notification rules: which events are sent to a webhook or by mail, gathered by their key."""
