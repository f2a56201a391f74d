"""Batches as runs: `/api/v1/runs`."""
