"""The registry of job sources: `/api/sources`."""
