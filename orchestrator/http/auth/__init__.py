"""Authentication, permissions, throttles and log-in pages."""
