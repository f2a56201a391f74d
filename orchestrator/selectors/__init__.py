"""Queries that several interfaces share."""
