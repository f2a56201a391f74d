"""Leases of workers: `/v1/runtime/leases`."""
