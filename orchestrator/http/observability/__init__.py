"""Access log, metrics, health checks and log redaction of the web processes."""
