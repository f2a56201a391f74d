"""Hardware specs: `/v0/specs`."""
