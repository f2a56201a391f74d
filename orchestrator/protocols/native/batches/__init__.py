"""Batches of jobs, workflow runs among them, and the checks of a commit."""
