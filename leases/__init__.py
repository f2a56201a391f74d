"""Leases: which worker may run which job, and which job is next."""
