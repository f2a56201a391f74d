"""Runs one job and displays its findings in the terminal."""
