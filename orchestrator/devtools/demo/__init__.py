"""Runs one job and shows its findings in the terminal."""
