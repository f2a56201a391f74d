"""Limits of what clients send."""
