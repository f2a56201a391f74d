"""Evidence that leaves the server: signing keys, signed statements, the audit bundle, and its verifier."""
