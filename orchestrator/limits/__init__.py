"""Limits and quotas of jobs, and counts of what clients send."""
