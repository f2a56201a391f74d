"""The run report: from the trace of a job to the payload for ingest."""
