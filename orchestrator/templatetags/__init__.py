"""Filters and tags for templates."""
