"""Delta CI (document 001): runners and runs under `/api/v1/`."""
