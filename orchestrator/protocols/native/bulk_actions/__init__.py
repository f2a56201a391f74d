"""Bulk actions on jobs and incidents."""
