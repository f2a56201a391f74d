"""Secrets and variables of repositories, and what is masked in logs."""
