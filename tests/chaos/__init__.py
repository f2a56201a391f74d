"""Runs a whole installation under faults. This is part of `tests/` because it uses the tests' factories."""
