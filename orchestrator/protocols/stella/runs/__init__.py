"""Runs: the logs, artifacts and heartbeats of a job, under `/runs/`."""
