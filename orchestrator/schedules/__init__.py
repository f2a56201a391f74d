"""Schedules: jobs that are submitted at the times of a cron expression."""
