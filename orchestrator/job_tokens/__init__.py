"""Tokens of workflow jobs: single-use ones for the runner's calls, and reusable ones for a checkout (document 003)."""
