"""Configures the server: settings, URLs, entry points, and the PostgreSQL for development."""
