"""Bulk actions: one operation on all jobs or incidents that match a filter, applied by dispatchers."""
