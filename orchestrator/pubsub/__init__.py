"""NOTIFY and LISTEN of PostgreSQL, waiting long polls, and shared reading for log streams."""
