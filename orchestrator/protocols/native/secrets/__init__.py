"""Secrets and variables of organizations and repositories."""
