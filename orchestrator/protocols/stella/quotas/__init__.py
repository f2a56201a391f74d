"""Quotas: `/api/quotas`."""
