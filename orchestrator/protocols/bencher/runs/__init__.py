"""Runs: `POST /v0/run`, which creates a report, and a job if the run names an image."""
