"""The server: operations, protocols, admin, reference ingest and the scheduler process."""
