"""Schedules and what became of their times."""
