"""Jobs: `/api/jobs`."""
