"""Error responses: codes, problem documents, pages."""
