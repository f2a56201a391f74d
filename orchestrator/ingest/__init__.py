"""The reference ingest: stores the runs that workers upload, and displays them."""
