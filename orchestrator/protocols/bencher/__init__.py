"""The API of Bencher (document 002) under `/v0/`, for its unmodified runner and command line."""
