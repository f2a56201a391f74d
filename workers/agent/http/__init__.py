"""The HTTP client of the worker."""
