"""Runs an installation on one machine for development: supervisor, seed data and demo."""
