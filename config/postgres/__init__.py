"""Starts the embedded PostgreSQL, and connects Django to whichever PostgreSQL is configured."""
