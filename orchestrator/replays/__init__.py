"""Replays of jobs: their rows, and the comparison of what a job and its replay have produced."""
