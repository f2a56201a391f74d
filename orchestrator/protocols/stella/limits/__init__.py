"""Temporary limits of sources: `/api/limits/pause`, `/api/limits/resume` and `/api/limits/throttle`."""
