"""Native API (document 000) under `/v1/`, one package per resource with the same file names."""
