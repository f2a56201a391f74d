"""The HTTP interface of the built-in ingest, and its pages."""
